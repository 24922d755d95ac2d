// What the Python side hands over: a dashboard's panels as generated, and Prometheus' answers as they came.

export interface Series {
  metric: Record<string, string>;
  value?: [number, string];
  values?: Array<[number, string]>;
}

export interface Answer {
  result?: Series[];
  error?: string;
}

export interface Target {
  refId: string;
  expr: string;
  format: string;
  legendFormat: string;
}

export interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  collapsed?: boolean;
  panels?: Panel[];
  targets?: Target[];
  options?: any;
  fieldConfig?: any;
  transformations?: any[];
}

export interface Note {
  name: string;
  color: string;
  timed: boolean; // the values are the times, in milliseconds
  result?: Series[];
}

export interface Drawing {
  title: string;
  subtitle: string;
  honest: string;
  language: string;
  theme: 'dark' | 'light';
  width: number;
  from: number;
  to: number;
  variables: Array<[string, string]>;
  panels: Panel[];
  data: Record<string, Record<string, Answer>>;
  steps: Record<string, number | null>; // seconds between two points of a panel
  annotations: Note[];
  alerts: Answer;
}
