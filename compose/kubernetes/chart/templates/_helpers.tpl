{{- define "shardwatch.fullname" -}}
{{- $default := ternary .Release.Name (printf "%s-shardwatch" .Release.Name) (contains "shardwatch" .Release.Name) -}}
{{- $name := .Values.fullnameOverride | default $default | trunc 52 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" $name) -}}
{{- fail (printf "fullnameOverride: no Service may be named %s: set a name of a-z, 0-9 and -, beginning with a letter" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{- define "shardwatch.selector" -}}
app.kubernetes.io/name: shardwatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of the user replace those of the chart, except those that select. */}}
{{- define "shardwatch.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" -}}
{{- $own := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" $chart -}}
{{- toYaml (merge (include "shardwatch.selector" . | fromYaml) (deepCopy (.Values.commonLabels | default dict)) $own) -}}
{{- end }}

{{- define "shardwatch.podLabels" -}}
{{- toYaml (merge (include "shardwatch.selector" . | fromYaml) (deepCopy (.Values.podLabels | default dict))) -}}
{{- end }}

{{- define "shardwatch.podAnnotations" -}}
{{- $own := dict "checksum/config" (include "shardwatch.config" . | sha256sum) -}}
{{- $_ := set $own "prometheus.io/scrape" (eq .Values.scrape.by "annotations" | toString) -}}
{{- $_ := set $own "prometheus.io/port" "9853" -}}
{{- if eq (include "shardwatch.scheme" .) "https" -}}
{{- $_ := set $own "prometheus.io/scheme" "https" -}}
{{- end -}}
{{- toYaml (merge (deepCopy (.Values.podAnnotations | default dict)) $own) -}}
{{- end }}

{{- define "shardwatch.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "shardwatch.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "shardwatch.priorityClass" -}}
{{- $name := .Values.priorityClass.name -}}
{{- if and .Values.priorityClass.create (hasPrefix "system-" $name) -}}
{{- fail (printf "priorityClass.name: %s exists already: set priorityClass.create to false, or remove the name" $name) -}}
{{- end -}}
{{- $name | default (ternary (include "shardwatch.fullname" .) "" .Values.priorityClass.create) -}}
{{- end }}

{{- define "shardwatch.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if not (kindIs "string" $tag) -}}
{{- $tag = $tag | int64 | toString -}}
{{- end -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "shardwatch.testLabels" -}}
app.kubernetes.io/name: shardwatch-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shardwatch.scheme" -}}
{{- ternary "https" "http" (and (ne .Values.web.secretName "") .Values.web.tls) -}}
{{- end }}

{{- define "shardwatch.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- with $config.listen -}}
{{- if or (not (hasSuffix ":9853" .)) (regexMatch "^(127[.]|localhost:|\\[::1\\])" .) -}}
{{- fail (printf "config.listen: %s: probes, Service and monitor reach port 9853 of the pod's address: remove it" .) -}}
{{- end -}}
{{- end -}}
{{- if and $config.web_config_file (not .Values.web.secretName) -}}
{{- fail "config.web_config_file: set web.secretName instead: it also sets the volume, the probes and the monitor" -}}
{{- end -}}
{{- if .Values.web.secretName -}}
{{- $config = merge $config (dict "web_config_file" "/etc/shardwatch-web/web.yml" "unauthenticated_health" true) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "shardwatch.securityContext" -}}
{{- if .Values.securityContext -}}
{{ toYaml .Values.securityContext }}
{{- else if eq .Values.access "kernelLog" -}}
privileged: true
runAsUser: 0
readOnlyRootFilesystem: true
{{- else if eq .Values.access "none" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- else -}}
# Kubernetes grants capabilities to root only.
runAsUser: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL], add: [SYS_PTRACE, DAC_READ_SEARCH]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- end }}

{{- define "shardwatch.probe" -}}
httpGet: {path: {{ .path }}, port: metrics{{ if eq .scheme "https" }}, scheme: HTTPS{{ end }}}
{{- end }}

{{/* What is scraped: an endpoint of a ServiceMonitor or of a PodMonitor. */}}
{{- define "shardwatch.endpoint" -}}
{{- $start := toDate "2006-01-02" "2000-01-01" -}}
{{- if (mustDateModify .Values.scrape.interval $start).Before (mustDateModify .Values.scrape.timeout $start) -}}
{{- fail (printf "scrape.timeout: %s is longer than scrape.interval, %s" .Values.scrape.timeout .Values.scrape.interval) -}}
{{- end -}}
port: metrics
interval: {{ .Values.scrape.interval }}
scrapeTimeout: {{ .Values.scrape.timeout }}
{{- if eq (include "shardwatch.scheme" .) "https" }}
scheme: https
{{- end }}
{{- with .Values.scrape.tlsConfig }}
tlsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.scrape.basicAuth }}
basicAuth: {{- toYaml . | nindent 2 }}
{{- end }}
honorLabels: true  # pod, namespace and container of gpu_owner_info are those of the GPU, not of the daemon
relabelings:
  # Dashboards and alerts are about nodes; a pod's address changes with each restart.
  - {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
{{- end }}

{{/* An object of a generated file, with the release's namespace and labels: a dict of root and manifest. */}}
{{- define "shardwatch.adopted" -}}
{{- $labels := include "shardwatch.labels" .root | fromYaml -}}
{{- $_ := set .manifest.metadata "namespace" .root.Release.Namespace -}}
{{- $_ := set .manifest.metadata "labels" (merge $labels .manifest.metadata.labels) -}}
{{- toYaml .manifest -}}
{{- end }}
