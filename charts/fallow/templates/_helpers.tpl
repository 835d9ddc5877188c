{{- define "fallow.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{- define "fallow.replicas" -}}
{{- if and (include "fallow.on.books" .) (not (include "fallow.on.server" .)) }}1{{ else }}{{ .Values.controller.replicas }}{{ end }}
{{- end }}

{{- /* A value as a flag is written: whole numbers without a point or an exponent. */}}
{{- define "fallow.spell" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* list FLAG VALUE USUAL: the argument, where it says something; once for each of a list. */}}
{{- define "fallow.flag" -}}
{{- $name := index . 0 }}{{ $value := index . 1 }}{{ $usual := index . 2 }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "%s=%s" $name (include "fallow.spell" .) | quote }}
{{- end }}
{{- else }}
{{- $text := include "fallow.spell" $value }}
{{- if and (ne $text "") (ne $text $usual) }}
- {{ printf "%s=%s" $name $text | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fallow.args" -}}
- -d
- --log-format=json
{{- include "fallow.looks" . }}
{{- include "fallow.args.components" . }}
{{- if .Values.sharing.enabled }}
- --sharing=act
{{- end }}
{{- end }}

{{- /* Where measurements are; "": exporters are read directly. `prometheus-operated` is of all that an operator runs in its namespace, so it comes last. */}}
{{- define "fallow.prometheusUrl" -}}
{{- $found := "" }}
{{- if eq .Values.prometheus.url "auto" }}
{{- range $namespace := .Values.prometheus.namespaces }}
{{- $services := dict }}
{{- range (lookup "v1" "Service" $namespace "").items }}{{ $_ := set $services .metadata.name . }}{{ end }}
{{- range $name := list "kube-prometheus-stack-prometheus" "prometheus-kube-prometheus-prometheus" "rancher-monitoring-prometheus" "prometheus-k8s" "prometheus-server" "prometheus" "prometheus-operated" }}
{{- with get $services $name }}
{{- range .spec.ports }}
{{- if and (not $found) (has (.name | default "http") (list "http" "http-web" "web")) }}
{{- $found = printf "http://%s.%s.svc:%v" $name $namespace .port }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
{{- $found = .Values.prometheus.url }}
{{- end }}
{{- $found }}
{{- end }}

{{- /* What `helm test` looks with as well. */}}
{{- define "fallow.looks" -}}
{{- with include "fallow.prometheusUrl" . }}
- --prometheus-url={{ . }}
{{- end }}
{{- include "fallow.args.controller" . }}
- --require-policy={{ include "fallow.requiresPolicy" . }}
- --cost-enforcement={{ .Values.cost.enforcement.enabled }}
- --scaling={{ if .Values.autoscaling.enabled }}{{ .Values.autoscaling.mode }}{{ else }}off{{ end }}
{{- if not .Values.binPacking.enabled }}
- --consolidation=off
- --defrag=off
{{- end }}
{{- if .Values.admissionWebhook.certManager.enabled }}
- --webhook-certificate=false
{{- end }}
{{- with .Values.cost.cloudProvider }}
- --cost-provider={{ . }}
{{- end }}
{{- if include "fallow.on.books" . }}
- --cost-attribution-labels={{ join "," .Values.cost.attribution.labels }}
{{- end }}
{{- with .Values.cost.timescaledb }}
{{- if .enabled }}
- --cost-retention-intervals-days={{ .retention.rawDays }}
- --cost-retention-hours-days={{ .retention.aggregateDays }}
{{- end }}
{{- end }}
{{- include "fallow.typed" .Values.flags }}
{{- end }}

{{- /* Flags by their names without dashes, as arguments. */}}
{{- define "fallow.typed" -}}
{{- range $name, $value := . }}
{{- if kindIs "bool" $value }}
{{- include "fallow.switched" (list $name $value) }}
{{- else }}
{{- include "fallow.flag" (list (printf "--%s" $name) $value "") }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fallow.extenderPort" -}}
{{- splitList ":" .Values.extender.addr | last }}
{{- end }}

{{- define "fallow.requiresPolicy" -}}
{{- if kindIs "bool" .Values.requirePolicy }}{{ .Values.requirePolicy }}{{ else }}{{ eq .Values.runMode "scale-down" }}{{ end }}
{{- end }}

{{- define "fallow.env" -}}
{{- if .Values.slack.enabled }}
- name: SLACK_WEBHOOK_URL
  valueFrom:
    secretKeyRef:
      name: gpu-pruner-slack-webhook
      key: webhook-url
- name: SLACK_NAMESPACE_MENTIONS
  valueFrom:
    secretKeyRef:
      name: gpu-pruner-config
      key: namespace-mentions
      optional: true
{{- end }}
{{- with .Values.cost.alerts.smtp }}
{{- if .urlSecretRef.name }}
- name: SMTP_URL
  valueFrom:
    secretKeyRef:
      name: {{ .urlSecretRef.name }}
      key: {{ .urlSecretRef.key }}
{{- else if .host }}
- name: SMTP_URL
  value: {{ printf "%s://%s%s:%v" (.startTLS | ternary "smtp" "smtps") (empty .username | ternary "" (printf "%s@" (urlquery .username | replace "+" "%20"))) .host .port | quote }}
{{- if .passwordSecretRef.name }}
- name: SMTP_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .passwordSecretRef.name }}
      key: {{ .passwordSecretRef.key }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (include "fallow.on.books" .) .Values.cost.timescaledb.enabled .Values.cost.timescaledb.passwordSecretRef.name }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.cost.timescaledb.passwordSecretRef.name }}
      key: {{ .Values.cost.timescaledb.passwordSecretRef.key }}
{{- end }}
{{- with .Values.controller.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fallow.pulling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "fallow.placing" -}}
{{- include "fallow.pulling" . }}
{{- with .Values.controller.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Of a pod that runs once: as restricted as the others. */}}
{{- define "fallow.lockedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "fallow.lockedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
