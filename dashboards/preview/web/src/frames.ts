// From Prometheus' answers to Grafana's data frames, named, transformed and configured as the panel says.
// Grafana's own registry of field options is not published, so the few options that the dashboards use stand here.

import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  DataFrame,
  FieldConfigOptionsRegistry,
  FieldType,
  GrafanaTheme2,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from '@grafana/data';
import { firstValueFrom, map, Observable } from 'rxjs';
import { Answer, Panel, Series } from './types';

const PLAIN = ['unit', 'min', 'max', 'decimals', 'noValue', 'mappings', 'thresholds', 'color', 'links', 'displayName',
  'fieldMinMax',
];
const CUSTOM = [
  'axisPlacement', 'axisLabel', 'drawStyle', 'lineInterpolation', 'barAlignment', 'lineWidth', 'fillOpacity',
  'gradientMode', 'spanNulls', 'showPoints', 'pointSize', 'stacking', 'scaleDistribution', 'hideFrom',
  'thresholdsStyle', 'lineStyle', 'align', 'cellOptions', 'inspect', 'filterable', 'width', 'axisSoftMin', 'minWidth',
  'axisSoftMax', 'axisBorderShow', 'axisColorMode', 'axisGridShow',
];

const item = (path: string, isCustom: boolean): any => ({
  id: isCustom ? `custom.${path}` : path, path, name: path, isCustom,
  editor: () => null, override: () => null,
  process: (value: any) => value, shouldApply: () => true,
});

const registry = new FieldConfigOptionsRegistry(() => [
  ...PLAIN.map((path) => item(path, false)),
  ...CUSTOM.map((path) => item(path, true)),
]);

// Grafana does not publish the one that makes a table with a curve in each row of a query's series.
const trends = {
  id: 'timeSeriesTable',
  name: 'Time series to table',
  defaultOptions: {},
  operator: () => (source: Observable<DataFrame[]>) => source.pipe(map((frames) => (frames.length ? [asTrends(frames)] : frames))),
};

function asTrends(frames: DataFrame[]): DataFrame {
  const curves = frames.map((frame) => ({ ...frame, value: frame.fields[1].values[frame.length - 1] }));
  const labels = [...new Set(frames.flatMap((frame) => Object.keys(frame.fields[1].labels ?? {})))];
  return {
    refId: frames[0].refId,
    length: frames.length,
    fields: [
      ...labels.map((name) => ({
        name, type: FieldType.string, config: {}, values: frames.map((frame) => frame.fields[1].labels?.[name] ?? ''),
      })),
      { name: `Trend #${frames[0].refId}`, type: FieldType.frame, config: {}, values: curves },
    ],
  };
}

standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer, trends].map((one: any) => ({
    id: one.id, name: one.name, transformation: async () => one, editor: () => null,
  })) as any
);

const number = (text: string): number => (text === 'NaN' ? NaN : text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

export const legend = (format: string, labels: Record<string, string>): string =>
  format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');

function points(series: Series): Array<[number, string]> {
  return series.values ?? (series.value ? [series.value] : []);
}

function overTime(refId: string, format: string, answer: Answer): DataFrame[] {
  return (answer.result ?? []).map((series) => {
    const name = legend(format, series.metric);
    return {
      refId,
      name,
      length: points(series).length,
      fields: [
        { name: 'Time', type: FieldType.time, config: {}, values: points(series).map(([time]) => time * 1000) },
        {
          name: 'Value', type: FieldType.number, labels: series.metric,
          config: { displayNameFromDS: name },
          values: points(series).map(([, value]) => number(value)),
        },
      ],
    };
  });
}

// The Prometheus data source makes one table a query: a column for each label that occurs, and the value's.
function asTable(refId: string, answer: Answer, single: boolean): DataFrame {
  const result = answer.result ?? [];
  const labels = [...new Set(result.flatMap((series) => Object.keys(series.metric)))].sort();
  const rows = result.map((series) => ({ labels: series.metric, point: points(series)[0] }));
  return {
    refId,
    length: rows.length,
    fields: rows.length === 0 ? [] : [
      { name: 'Time', type: FieldType.time, config: {}, values: rows.map((row) => row.point[0] * 1000) },
      ...labels.map((name) => ({
        name, type: FieldType.string, config: { filterable: true }, values: rows.map((row) => row.labels[name] ?? ''),
      })),
      {
        name: single ? 'Value' : `Value #${refId}`, type: FieldType.number, config: {},
        values: rows.map((row) => number(row.point[1])),
      },
    ],
  };
}

export async function framesOf(panel: Panel, data: Record<string, Answer>, theme: GrafanaTheme2): Promise<DataFrame[]> {
  const targets = panel.targets ?? [];
  let frames = targets.flatMap((target) =>
    target.format === 'table'
      ? [asTable(target.refId, data[target.refId] ?? {}, targets.length === 1)]
      : overTime(target.refId, target.legendFormat, data[target.refId] ?? {})
  );
  if (panel.transformations?.length) {
    const filled = frames.filter((frame) => frame.fields.length > 0);
    frames = filled.length ? await firstValueFrom(transformDataFrame(panel.transformations, filled)) : [];
  }
  const shown = applyFieldOverrides({
    data: frames,
    fieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] },
    fieldConfigRegistry: registry,
    replaceVariables: (text: string) => text,
    theme,
    timeZone: 'utc',
  });
  cacheFieldDisplayNames(shown); // the table's headings and its order of columns go by them
  return shown;
}
