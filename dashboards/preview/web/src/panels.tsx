// One panel: Grafana's component where it is published, the preview's own drawing elsewhere.

import React, { useMemo } from 'react';
import {
  DataFrame, dateTime, FieldDisplay, getDisplayValueAlignmentFactors, getFieldDisplayValues, GrafanaTheme2,
  renderTextPanelMarkdown, TimeRange, VizOrientation,
} from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, UPlotConfigBuilder, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { Alerts, Buckets, Dial, Nothing, Strips } from './own';
import { Drawing, Panel, Series } from './types';

interface Props { panel: Panel; frames: DataFrame[]; width: number; height: number; theme: GrafanaTheme2; drawing: Drawing }

const rangeOf = (drawing: Drawing): TimeRange => {
  const from = dateTime(drawing.from * 1000);
  const to = dateTime(drawing.to * 1000);
  return { from, to, raw: { from, to } };
};

export function Body(props: Props) {
  const { panel, frames, theme, drawing, width, height } = props;
  if (panel.type === 'text') {
    return <div className="markdown-html" style={{ fontSize: 14 }} dangerouslySetInnerHTML={{ __html: renderTextPanelMarkdown(panel.options.content) }} />;
  }
  if (panel.type === 'alertlist') {
    return <Alerts {...props} />;
  }
  const empty = frames.length === 0 || frames.every((frame) => frame.length === 0);
  if (panel.type === 'stat') {
    return <Figures {...props} />; // shows its no-value text in its own colour
  }
  if (empty) {
    return <Nothing text={panel.fieldConfig?.defaults?.noValue ?? 'No data'} theme={theme} />;
  }
  switch (panel.type) {
    case 'gauge':
      return <Dials {...props} />;
    case 'bargauge':
      return <Bars {...props} />;
    case 'timeseries':
      return <Curves {...props} />;
    case 'table':
      return (
        <TableNG data={frames[0]} width={width} height={height} sortBy={panel.options.sortBy} noHeader={!panel.options.showHeader}
          cellHeight={panel.options.cellHeight} timeRange={rangeOf(drawing)} fieldConfig={panel.fieldConfig} enableVirtualization={false}
          noValue={panel.fieldConfig?.defaults?.noValue} />
      );
    case 'state-timeline':
      return <Strips {...props} merge />;
    case 'status-history': {
      const many = Math.max(...frames.map((frame) => frame.length));
      if (many > width / 2) {
        return <Nothing text={`Grafana would refuse this: ${many} points on ${Math.floor(width)} pixels`} theme={theme} />;
      }
      return <Strips {...props} merge={false} />;
    }
    case 'heatmap':
      return <Buckets {...props} />;
    default:
      throw new Error(`the preview does not know panels of type ${panel.type}`);
  }
}

function displayed({ panel, frames, theme }: Props): FieldDisplay[] {
  return getFieldDisplayValues({
    data: frames, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text, theme, timeZone: 'utc',
  });
}

function Figures(props: Props) {
  const { panel, width, height, theme } = props;
  const values = displayed(props);
  return (
    <VizRepeater getValues={() => values} getAlignmentFactors={getDisplayValueAlignmentFactors} width={width} height={height} source={values} autoGrid
      orientation={VizOrientation.Auto} renderCounter={0} itemSpacing={3}
      renderValue={({ value, width: wide, height: high, alignmentFactors, count }: any) => (
        <BigValue value={value.display} width={wide} height={high} theme={theme} count={count} alignmentFactors={alignmentFactors}
          colorMode={panel.options.colorMode} graphMode={panel.options.graphMode} justifyMode={panel.options.justifyMode}
          textMode={panel.options.textMode} text={panel.options.text} />
      )}
    />
  );
}

function Dials(props: Props) {
  const values = displayed(props);
  const wide = props.width / Math.max(1, values.length);
  return <>{values.map((value, place) => <Dial key={place} value={value} width={wide} height={props.height} theme={props.theme} />)}</>;
}

function Bars(props: Props) {
  const { panel, width, height, theme } = props;
  const options = panel.options;
  const values = displayed(props);
  return (
    <VizRepeater getValues={() => values} getAlignmentFactors={getDisplayValueAlignmentFactors} width={width} height={height} source={values}
      orientation={options.orientation} renderCounter={0} minVizWidth={options.minVizWidth} minVizHeight={options.minVizHeight}
      maxVizHeight={options.maxVizHeight} itemSpacing={10}
      renderValue={({ value, width: wide, height: high, alignmentFactors }: any) => (
        <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} width={wide} height={high}
          theme={theme} orientation={options.orientation} alignmentFactors={alignmentFactors} displayMode={options.displayMode}
          showUnfilled={options.showUnfilled} valueDisplayMode={options.valueMode} namePlacement={options.namePlacement} />
      )}
    />
  );
}

function Curves({ panel, frames, width, height, drawing }: Props) {
  const finite = useMemo(() => frames.map(withoutNonNumbers), [frames]);
  return (
    <TimeSeries frames={finite} width={width} height={height} timeRange={rangeOf(drawing)} timeZone="utc" legend={panel.options.legend} options={panel.options}>
      {(builder: UPlotConfigBuilder) => {
        mark(builder, drawing);
        return null;
      }}
    </TimeSeries>
  );
}

// Grafana's panel draws what is not finite as a hole; the component alone loses its axis over it.
const withoutNonNumbers = (frame: DataFrame): DataFrame => ({
  ...frame,
  fields: frame.fields.map((field) => ({ ...field, values: field.values.map((value) => (Number.isFinite(value) ? value : null)) })),
});

const marked = new WeakSet<UPlotConfigBuilder>();

// Annotations as Grafana draws them: a dashed line where a mark begins, a tint as long as it lasts.
function mark(builder: UPlotConfigBuilder, drawing: Drawing) {
  if (marked.has(builder)) {
    return;
  }
  marked.add(builder);
  builder.addHook('draw', (plot) => {
    const { ctx, bbox } = plot;
    const across = (time: number) => Math.min(Math.max(plot.valToPos(time, 'x', true), bbox.left), bbox.left + bbox.width);
    ctx.save();
    for (const note of drawing.annotations) {
      for (const [from, to] of (note.result ?? []).flatMap((series) => regions(series, note.timed))) {
        ctx.strokeStyle = note.color;
        ctx.setLineDash([4, 4]);
        ctx.beginPath();
        ctx.moveTo(across(from), bbox.top);
        ctx.lineTo(across(from), bbox.top + bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 0.04;
        ctx.fillStyle = note.color;
        ctx.fillRect(across(from), bbox.top, across(to) - across(from), bbox.height);
        ctx.globalAlpha = 1;
      }
    }
    ctx.restore();
  });
}

// Grafana takes marks within a minute of each other for one.
function regions(series: Series, timed: boolean): Array<[number, number]> {
  const found: Array<[number, number]> = [];
  for (const [at, value] of series.values ?? []) {
    const time = timed ? Number(value) : at * 1000;
    const last = found[found.length - 1];
    if (last && last[1] + 60_000 >= time) {
      last[1] = time;
    } else if (timed || Number(value) > 0) {
      found.push([time, time]);
    }
  }
  return found;
}
