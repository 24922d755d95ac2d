// What Grafana does not publish, drawn plainly: strips and cells over time, buckets over time, the list of alerts.

import React from 'react';
import { DataFrame, Field, FieldDisplay, getValueFormat, formattedValueToString, GrafanaTheme2 } from '@grafana/data';
import { legend } from './frames';
import { Drawing, Panel, Series } from './types';

interface Size { width: number; height: number; theme: GrafanaTheme2; drawing: Drawing }

const LABEL = 0.28;
const AXIS = 20;

export function clock(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(11, 16);
}

function TimeAxis({ left, width, height, drawing, theme }: Size & { left: number }) {
  const span = drawing.to - drawing.from;
  const every = [60, 120, 300, 600, 900].find((one) => span / one <= width / 70) ?? 1800;
  const ticks: number[] = [];
  for (let at = Math.ceil(drawing.from / every) * every; at <= drawing.to; at += every) {
    ticks.push(at);
  }
  return (
    <>
      {ticks.map((at) => (
        <text key={at} x={left + ((at - drawing.from) / span) * width} y={height - 5} fontSize={11} textAnchor="middle"
          fill={theme.colors.text.secondary}>{clock(at)}</text>
      ))}
    </>
  );
}

const valueField = (frame: DataFrame): Field => frame.fields[1];
const nameOf = (frame: DataFrame): string => valueField(frame).config.displayNameFromDS ?? '';

function cells(frame: DataFrame, step: number): Array<{ from: number; to: number; value: number }> {
  const times = frame.fields[0].values as number[];
  const values = valueField(frame).values as number[];
  return times.map((time, place) => ({ from: time / 1000 - step, to: time / 1000, value: values[place] }));
}

// One strip a series; neighbours of one value become one stretch, missing points stay holes.
export function Strips({ frames, panel, merge, ...size }: Size & { frames: DataFrame[]; panel: Panel; merge: boolean }) {
  const { width, height, theme, drawing } = size;
  const names = frames.map(nameOf);
  const longest = Math.max(...names.map((name) => name.length));
  const left = Math.min(width * LABEL * 1.4, longest * 6.6 + 10);
  const items = legendOf(frames, panel, theme);
  const legendHeight = items.length ? 22 : 0;
  const line = Math.max(4, (height - AXIS - legendHeight) / Math.max(1, frames.length));
  const span = drawing.to - drawing.from;
  const wide = width - left - 8;
  const across = (at: number) => left + (Math.max(0, at - drawing.from) / span) * wide;
  const step = drawing.steps[panel.id] ?? span;
  const gap = merge ? 0 : 0.05;
  return (
    <div style={{ width, height }}>
      <svg width={width} height={height - legendHeight}>
        {frames.map((frame, place) => {
          const field = valueField(frame);
          return (
            <g key={place}>
              <text x={left - 6} y={place * line + line / 2 + 4} fontSize={Math.min(12, line)} textAnchor="end"
                fill={theme.colors.text.primary}>{names[place]}</text>
              {cells(frame, step).map((cell, at) => {
                const shown = field.display!(cell.value);
                const box = across(cell.to) - across(cell.from);
                return (
                  <rect key={at} x={across(cell.from) + box * gap} y={place * line + line * 0.05}
                    width={Math.max(0.5, box * (1 - 2 * gap) + (merge ? 0.6 : 0))} height={line * 0.9} fill={shown.color} opacity={0.85} />
                );
              })}
            </g>
          );
        })}
        <TimeAxis {...size} left={left} width={wide} height={height - legendHeight} />
      </svg>
      {items.length > 0 && (
        <div style={{ display: 'flex', gap: 14, height: legendHeight, fontSize: 12, paddingLeft: 6, color: theme.colors.text.primary }}>
          {items.map((one) => (
            <span key={one.label}>
              <span style={{ display: 'inline-block', width: 14, height: 4, marginRight: 5, verticalAlign: 'middle', background: one.color }} />
              {one.label}
            </span>
          ))}
        </div>
      )}
    </div>
  );
}

function legendOf(frames: DataFrame[], panel: Panel, theme: GrafanaTheme2): Array<{ label: string; color: string }> {
  if (frames.length === 0 || panel.options?.legend?.showLegend === false) {
    return [];
  }
  const config = valueField(frames[0]).config;
  const named = (config.mappings ?? []).flatMap((one: any) =>
    one.type === 'value' ? Object.values(one.options).map((state: any) => ({ label: state.text, color: theme.visualization.getColorByName(state.color) })) : []
  );
  if (named.length > 0) {
    return named;
  }
  if (String(config.color?.mode ?? '').startsWith('continuous')) {
    return []; // Grafana shows a gradient without numbers here; it says little
  }
  const steps = config.thresholds?.steps ?? [];
  return steps.length < 2 ? [] : steps.map((step: any, place: number) => {
    const text = (value: number) => formattedValueToString(getValueFormat(config.unit)(value, config.decimals));
    const label = place === 0 ? `< ${text(steps[1].value)}` : `${text(step.value)}+`;
    return { label, color: theme.visualization.getColorByName(step.color) };
  });
}

const VIRIDIS = ['#440154', '#482878', '#3e4989', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6ece58', '#b5de2b', '#fde725'];

// Buckets arrive cumulative, as Prometheus has them; a cell is the difference of two neighbours, as in Grafana.
export function Buckets({ frames, panel, ...size }: Size & { frames: DataFrame[]; panel: Panel }) {
  const { width, height, theme, drawing } = size;
  const bound = (frame: DataFrame) => (valueField(frame).labels?.le === '+Inf' ? Infinity : Number(valueField(frame).labels?.le));
  const sorted = [...frames].sort((one, other) => bound(one) - bound(other));
  const at = sorted.map((frame) => new Map((frame.fields[0].values as number[]).map((time, place) => [time, (valueField(frame).values as number[])[place]])));
  const times = [...new Set(sorted.flatMap((frame) => frame.fields[0].values as number[]))].sort((one, other) => one - other);
  const value = (row: number, time: number) => Math.max(0, (at[row].get(time) ?? 0) - (row > 0 ? at[row - 1].get(time) ?? 0 : 0));
  const rows = sorted.map((_, row) => row);
  const used = rows.filter((row) => times.some((time) => value(row, time) > 1e-9));
  const shown = rows.slice(Math.max(0, Math.min(...used) - 1), Math.max(...used) + 2);
  const most = Math.max(...shown.flatMap((row) => times.map((time) => value(row, time))), 1e-9);
  const left = 52;
  const line = (height - AXIS - 8) / shown.length;
  const span = drawing.to - drawing.from;
  const wide = width - left - 8;
  const step = drawing.steps[panel.id] ?? span;
  const format = getValueFormat(panel.options?.yAxis?.unit ?? 's');
  return (
    <svg width={width} height={height}>
      {shown.map((row, place) => {
        const top = height - AXIS - (place + 1) * line;
        return (
          <g key={row}>
            {line >= 9 || place % 2 === 0 ? (
              <text x={left - 6} y={top + 4} fontSize={11} textAnchor="end" fill={theme.colors.text.secondary}>
                {bound(sorted[row]) === Infinity ? '+Inf' : formattedValueToString(format(bound(sorted[row])))}
              </text>
            ) : null}
            {times.filter((time) => value(row, time) > 1e-9).map((time) => (
              <rect key={time} x={left + ((time / 1000 - step - drawing.from) / span) * wide} y={top}
                width={(step / span) * wide + 0.5} height={line - 1}
                fill={VIRIDIS[Math.min(9, Math.floor(Math.sqrt(value(row, time) / most) * 9.99))]} />
            ))}
          </g>
        );
      })}
      <TimeAxis {...size} left={left} width={wide} height={height} />
    </svg>
  );
}

// Grafana lists alerts through its own API; here they come from Prometheus' series of its alerts.
export function Alerts({ drawing, theme, width, height }: Size) {
  const colour: Record<string, string> = { critical: '#C4162A', warning: '#E69F00', info: '#56B4E9' };
  const order = ['critical', 'warning', 'info', 'none'];
  const firing = drawing.alerts.result ?? [];
  const rank = (series: Series) => order.indexOf(series.metric.severity) + (series.metric.alertstate === 'firing' ? 0 : 10);
  const sorted = firing.filter((one) => one.metric.severity !== 'none').sort((one, other) => rank(one) - rank(other));
  return (
    <div style={{ width, height, overflow: 'hidden', fontSize: 13 }}>
      {sorted.length === 0 && <Nothing text="no alert" theme={theme} />}
      {sorted.map((one, place) => (
        <div key={place} style={{ borderLeft: `4px solid ${colour[one.metric.severity] ?? '#888'}`, padding: '3px 8px', margin: '0 0 3px 0', background: theme.colors.background.secondary }}>
          <b>{one.metric.alertname}</b> <span style={{ color: theme.colors.text.secondary }}>
            {one.metric.alertstate} {legend('{{severity}} {{instance}} {{replica}} {{gpu}}', one.metric)}</span>
        </div>
      ))}
    </div>
  );
}

// A dial: the value's share of the half circle in its own colour, the thresholds as a thin rim.
export function Dial({ value, width, height, theme }: { value: FieldDisplay; width: number; height: number; theme: GrafanaTheme2 }) {
  const least = value.field.min ?? 0;
  const most = value.field.max ?? 100;
  const share = (number: number) => Math.min(1, Math.max(0, (number - least) / (most - least)));
  const radius = Math.min(width / 2, height) * 0.7;
  const arc = (from: number, to: number, at: number) => {
    const point = (part: number) => `${width / 2 - at * Math.cos(Math.PI * part)} ${height * 0.92 - at * Math.sin(Math.PI * part)}`;
    return `M ${point(from)} A ${at} ${at} 0 0 1 ${point(to)}`;
  };
  const steps = value.field.thresholds?.steps ?? [];
  const { numeric, color, text, prefix, suffix } = value.display;
  return (
    <svg width={width} height={height}>
      <path d={arc(0, 1, radius)} stroke={theme.colors.background.secondary} strokeWidth={radius * 0.28} fill="none" />
      {share(numeric) > 0 && <path d={arc(0, share(numeric), radius)} stroke={color} strokeWidth={radius * 0.28} fill="none" />}
      {steps.map((step, place) => (
        <path key={place} d={arc(share(Math.max(step.value, least)), share(steps[place + 1]?.value ?? most), radius * 1.19)}
          stroke={theme.visualization.getColorByName(step.color)} strokeWidth={3} fill="none" />
      ))}
      <text x={width / 2} y={height * 0.9} fontSize={radius * 0.36} textAnchor="middle" fill={color}>{prefix}{text}{suffix}</text>
    </svg>
  );
}

export function Nothing({ text, theme }: { text: string; theme: GrafanaTheme2 }) {
  return (
    <div style={{ display: 'flex', height: '100%', alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary }}>
      {text}
    </div>
  );
}
