"""Pictures of the dashboards without Grafana; for development only, never part of a wheel.

``recording`` runs daemons on simulated nodes and a Prometheus that scrapes them; ``plan`` reads a generated dashboard
and lists its queries; ``ask`` runs them; ``web/`` draws the results with Grafana's published components in a headless
Chromium, which ``drawing`` starts. What Grafana does not publish (heatmap, state timeline, status history, alert list)
is drawn by own code. A picture shows texts, queries, units, thresholds and layout; it is no proof of what Grafana
shows.
"""
