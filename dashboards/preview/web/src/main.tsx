// The page: a dashboard's rows and panels in their places; tells the driver when it is drawn, and what went wrong.

import React from 'react';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { createTheme, DataFrame, GrafanaTheme2, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome, PortalContainer } from '@grafana/ui';
import { framesOf } from './frames';
import { clock } from './own';
import { Body } from './panels';
import { Drawing, Panel } from './types';

const CELL = 30;
const GAP = 8;
const problems: string[] = [];

class Guard extends React.Component<{ name: string; children: React.ReactNode }, { failed?: string }> {
  state: { failed?: string } = {};
  static getDerivedStateFromError(error: Error) {
    return { failed: String(error) };
  }
  componentDidCatch(error: Error) {
    problems.push(`${this.props.name}: ${error.stack ?? error}`);
  }
  render() {
    return this.state.failed ? <pre>{this.state.failed}</pre> : this.props.children;
  }
}

function Head({ drawing, theme }: { drawing: Drawing; theme: GrafanaTheme2 }) {
  return (
    <div style={{ height: 40, boxSizing: 'border-box', overflow: 'hidden', padding: '8px 8px 4px', display: 'flex', alignItems: 'baseline', gap: 16, whiteSpace: 'nowrap' }}>
      <b style={{ fontSize: 18 }}>{drawing.title}</b>
      {drawing.variables.map(([label, value]) => (
        <span key={label} style={{ fontSize: 12 }}>
          <span style={{ color: theme.colors.text.secondary }}>{label}</span> {value}
        </span>
      ))}
      <span style={{ fontSize: 12 }}>{clock(drawing.from)} – {clock(drawing.to)} UTC</span>
      <span style={{ marginLeft: 'auto', fontSize: 12, color: theme.colors.text.secondary }}>{drawing.subtitle} · {drawing.honest}</span>
    </div>
  );
}

function Dashboard({ drawing, frames, theme }: { drawing: Drawing; frames: Map<number, DataFrame[]>; theme: GrafanaTheme2 }) {
  const column = (drawing.width - GAP) / 24;
  const lines = Math.max(...drawing.panels.map((panel) => panel.gridPos.y + panel.gridPos.h));
  return (
    <div style={{ position: 'relative', height: lines * (CELL + GAP) }}>
      {drawing.panels.map((panel) => {
        const { x, y, w, h } = panel.gridPos;
        const place = { position: 'absolute' as const, left: GAP + x * column, top: y * (CELL + GAP), width: w * column - GAP, height: h * (CELL + GAP) - GAP };
        if (panel.type === 'row') {
          return <div key={panel.id} style={{ ...place, fontSize: 15, fontWeight: 500, paddingTop: 4 }}>
            {panel.collapsed ? '▸' : '▾'} {panel.title} {panel.collapsed ? <span style={{ color: theme.colors.text.secondary }}>({panel.panels?.length})</span> : null}
          </div>;
        }
        return (
          <div key={panel.id} style={place}>
            <Guard name={panel.title}>
              <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}>
                {(width, height) => <Guard name={panel.title}><Body {...{ panel, width, height, theme, drawing }} frames={frames.get(panel.id) ?? []} /></Guard>}
              </PanelChrome>
            </Guard>
          </div>
        );
      })}
    </div>
  );
}

async function start() {
  const drawing: Drawing = await (await fetch('/drawing.json')).json();
  const theme = createTheme({ colors: { mode: drawing.theme } });
  const frames = new Map<number, DataFrame[]>();
  for (const panel of drawing.panels as Panel[]) {
    try {
      frames.set(panel.id, await framesOf(panel, drawing.data[String(panel.id)] ?? {}, theme));
    } catch (error) {
      problems.push(`${panel.title}: ${(error as Error).stack ?? error}`);
    }
  }
  createRoot(document.getElementById('page')!).render(
    <MemoryRouter>
      <ThemeContext.Provider value={theme}>
        <GlobalStyles />
        <Head drawing={drawing} theme={theme} />
        <Dashboard drawing={drawing} frames={frames} theme={theme} />
        <PortalContainer />
      </ThemeContext.Provider>
    </MemoryRouter>
  );
  await new Promise((done) => setTimeout(done, 2500));
  await fetch('/report', { method: 'POST', body: JSON.stringify(problems) });
}

window.addEventListener('error', (event) => problems.push(String(event.error?.stack ?? event.message)));
start().catch((error) => fetch('/report', { method: 'POST', body: JSON.stringify([String(error.stack ?? error)]) }));
