"""Pictures of the boards without Grafana, for whoever works on them: development only, never part of a wheel.

The flow: ``recording`` runs daemons on simulated nodes and a Prometheus that scrapes them; ``plan`` reads a generated
board and says what to ask; ``ask`` asks; ``web/`` draws the answers with Grafana's published components in a headless
Chromium, which ``drawing`` runs.  What Grafana does not publish (heat map, state timeline, status history, alert list)
is drawn by the preview's own few lines.  So a picture shows the boards' words, queries, units, thresholds and layout;
it is no proof of what Grafana itself shows.
"""
