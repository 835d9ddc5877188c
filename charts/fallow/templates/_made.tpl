{{- /* Made from the code by `make docs`. */ -}}
{{- define "fallow.on.controller" }}{{ if .Values.controller.enabled }}on{{ end }}{{ end }}
{{- define "fallow.on.acts" }}{{ if (and .Values.controller.enabled (eq .Values.runMode "scale-down")) }}on{{ end }}{{ end }}
{{- define "fallow.on.dashboard" }}{{ if (and .Values.controller.enabled .Values.dashboard.enabled) }}on{{ end }}{{ end }}
{{- define "fallow.on.books" }}{{ if (and .Values.controller.enabled (or .Values.cost.enabled .Values.cost.timescaledb.enabled)) }}on{{ end }}{{ end }}
{{- define "fallow.on.server" }}{{ if (or .Values.cost.timescaledb.enabled .Values.cost.store.dsn .Values.cost.store.dsnSecret) }}on{{ end }}{{ end }}
{{- define "fallow.on.webhook" }}{{ if (or .Values.admissionWebhook.enabled .Values.cost.enforcement.enabled) }}on{{ end }}{{ end }}
{{- define "fallow.on.extender" }}{{ if .Values.extender.enabled }}on{{ end }}{{ end }}
{{- define "fallow.on.second" }}{{ if (and .Values.extender.enabled (eq .Values.extender.mode "scheduler")) }}on{{ end }}{{ end }}
{{- define "fallow.on.exporter" }}{{ if .Values.exporter.enabled }}on{{ end }}{{ end }}
{{- define "fallow.on.scaling" }}{{ if (and .Values.controller.enabled .Values.autoscaling.enabled) }}on{{ end }}{{ end }}
{{- define "fallow.on.spotWatch" }}{{ if .Values.spotWatch.enabled }}on{{ end }}{{ end }}
{{- define "fallow.switched" }}
{{- if has (index . 0) (list "trust-metrics" "honor-labels") }}
{{- if index . 1 }}
- --{{ index . 0 }}
{{- end }}
{{- else }}
- --{{ index . 0 }}={{ index . 1 }}
{{- end }}
{{- end }}
{{- define "fallow.args.components" -}}
{{- if (include "fallow.on.dashboard" .) }}
- --dashboard-port=8080
- --dashboard-auth={{ .Values.dashboard.auth }}
- --session-key-file=/etc/gpu-pruner/session/key
{{- end }}
{{- if (and (include "fallow.on.books" .) (not (include "fallow.on.server" .))) }}
- --cost=true
- --state-dir=/var/lib/fallow
{{- end }}
{{- if (and (include "fallow.on.books" .) (include "fallow.on.server" .)) }}
- --cost=true
- --cost-store-dsn-file=/etc/fallow/cost/dsn
- --cost-spool=/var/lib/fallow/costs.spool
{{- end }}
{{- if (and (include "fallow.on.dashboard" .) .Values.dashboard.peers) }}
{{- range .Values.dashboard.peers }}
- "--peer={{ .name }}={{ .url }}"
{{- if .tokenSecret }}
- "--peer-token-file={{ .name }}=/etc/fallow/peers/{{ .name }}"
{{- end }}
{{- end }}
{{- if .Values.dashboard.peerCaSecret }}
- --peer-ca-file=/etc/fallow/peers/_ca.crt
{{- end }}
{{- end }}
{{- if (and (include "fallow.on.controller" .) .Values.settings) }}
- --config=/etc/fallow/settings/settings.yaml
{{- end }}
{{- end }}
{{- define "fallow.mounts" -}}
{{- if (or (include "fallow.on.dashboard" .) (include "fallow.on.books" .) (and (include "fallow.on.controller" .) .Values.settings)) }}
          volumeMounts:
{{- if (include "fallow.on.dashboard" .) }}
            - name: session-key
              mountPath: /etc/gpu-pruner/session
              readOnly: true
{{- end }}
{{- if (and (include "fallow.on.books" .) (not (include "fallow.on.server" .))) }}
            - name: cost
              mountPath: /var/lib/fallow
{{- end }}
{{- if (and (include "fallow.on.books" .) (include "fallow.on.server" .)) }}
            - name: cost
              mountPath: /var/lib/fallow
            - name: dsn
              mountPath: /etc/fallow/cost
              readOnly: true
{{- end }}
{{- if (and (include "fallow.on.dashboard" .) .Values.dashboard.peers) }}
            - name: peers
              mountPath: /etc/fallow/peers
              readOnly: true
{{- end }}
{{- if (and (include "fallow.on.controller" .) .Values.settings) }}
            - name: settings
              mountPath: /etc/fallow/settings
              readOnly: true
{{- end }}
      volumes:
{{- if (include "fallow.on.dashboard" .) }}
        - name: session-key
          secret:
            secretName: {{ .Values.dashboard.sessionKeySecret | default "gpu-pruner-session-key" }}
            defaultMode: 288
{{- end }}
{{- if (and (include "fallow.on.books" .) (not (include "fallow.on.server" .))) }}
        - name: cost
          persistentVolumeClaim:
            claimName: {{ .Values.cost.persistence.existingClaim | default "gpu-pruner-cost" }}
{{- end }}
{{- if (and (include "fallow.on.books" .) (include "fallow.on.server" .)) }}
        - name: cost
          emptyDir:
            sizeLimit: 1Gi
        - name: dsn
          secret:
            secretName: {{ .Values.cost.store.dsnSecret | default "gpu-pruner-cost" }}
            defaultMode: 288
{{- end }}
{{- if (and (include "fallow.on.dashboard" .) .Values.dashboard.peers) }}
        - name: peers
          projected:
            defaultMode: 288
            sources:
{{- range .Values.dashboard.peers }}
{{- $name := .name }}
{{- with .tokenSecret }}
              - secret:
                  name: {{ .name }}
                  optional: true
                  items:
                    - key: {{ .key | default "token" }}
                      path: {{ $name }}
{{- end }}
{{- end }}
{{- with .Values.dashboard.peerCaSecret }}
              - secret:
                  name: {{ . }}
                  items:
                    - key: ca.crt
                      path: _ca.crt
{{- end }}
{{- end }}
{{- if (and (include "fallow.on.controller" .) .Values.settings) }}
        - name: settings
          configMap:
            name: gpu-pruner-settings
{{- end }}
{{- end }}
{{- end }}
{{- define "fallow.args.controller" -}}
{{- include "fallow.flag" (list "--run-mode" .Values.runMode "") }}
{{- include "fallow.flag" (list "--dry-run-scope" .Values.dryRunScope "") }}
{{- include "fallow.flag" (list "--check-interval" .Values.checkInterval "") }}
{{- include "fallow.flag" (list "--enabled-resources" .Values.enabledResources "drsin") }}
{{- include "fallow.flag" (list "--dashboard-public-url" .Values.dashboard.publicUrl "") }}
{{- include "fallow.flag" (list "--slack-channel" .Values.slack.channel "") }}
{{- include "fallow.flag" (list "--cost-provider" .Values.cost.provider "none") }}
{{- include "fallow.flag" (list "--cost-region" .Values.cost.region "") }}
{{- include "fallow.flag" (list "--cost-currency" .Values.cost.currency "USD") }}
{{- include "fallow.flag" (list "--cost-node-split" .Values.cost.nodeSplit "gpu") }}
{{- include "fallow.flag" (list "--cost-tracking-interval" .Values.cost.trackingInterval "60s") }}
{{- include "fallow.flag" (list "--cost-store" .Values.cost.store.path "") }}
{{- include "fallow.flag" (list "--cost-spool" .Values.cost.store.spoolPath "") }}
{{- include "fallow.flag" (list "--cost-retention-intervals-days" .Values.cost.retention.intervalsDays "90") }}
{{- include "fallow.flag" (list "--cost-retention-hours-days" .Values.cost.retention.hoursDays "365") }}
{{- include "fallow.flag" (list "--cost-prices-max-age-days" .Values.cost.prices.maxAgeDays "90") }}
{{- include "fallow.flag" (list "--cost-prices-refresh" .Values.cost.prices.refreshInterval "6h") }}
{{- include "fallow.flag" (list "--email-from" .Values.cost.alerts.smtp.from "") }}
{{- include "fallow.flag" (list "--email-domains" .Values.cost.alerts.smtp.domains "") }}
{{- include "fallow.flag" (list "--cost-enforcement-edit-node-pools" .Values.cost.enforcement.editNodePools "false") }}
{{- include "fallow.flag" (list "--cost-max-override-hours" .Values.cost.enforcement.maxOverrideHours "72") }}
{{- include "fallow.flag" (list "--cost-roi-monthly-investment" .Values.cost.roi.monthlyInvestment "0") }}
{{- include "fallow.flag" (list "--cost-metrics-max-pods" .Values.cost.metrics.maxPods "5000") }}
{{- include "fallow.flag" (list "--cost-api-port" .Values.cost.api.port "") }}
{{- include "fallow.flag" (list "--cost-energy-price-per-kwh" .Values.cost.energy.pricePerKWh "") }}
{{- include "fallow.flag" (list "--cost-energy-gco2-per-kwh" .Values.cost.energy.gCO2PerKWh "") }}
{{- include "fallow.flag" (list "--cost-energy-include-in-cost" .Values.cost.energy.includeInCost "false") }}
{{- include "fallow.flag" (list "--sharing-backend" .Values.sharing.backend "device-plugin") }}
{{- include "fallow.flag" (list "--sharing-max-changes" .Values.sharing.maxConcurrentChanges "1") }}
{{- include "fallow.flag" (list "--sharing-plugin-configmap" .Values.sharing.devicePluginConfigMap "gpu-operator/device-plugin-config") }}
{{- include "fallow.flag" (list "--sharing-mig-configmap" .Values.sharing.mig.configMap "gpu-operator/fallow-mig-parted-config") }}
{{- include "fallow.flag" (list "--consolidation" .Values.binPacking.consolidation.mode "recommend") }}
{{- include "fallow.flag" (list "--consolidation-threshold" .Values.binPacking.consolidation.threshold "0.5") }}
{{- include "fallow.flag" (list "--defrag" .Values.binPacking.defrag.mode "recommend") }}
{{- include "fallow.flag" (list "--defrag-scheduler" .Values.binPacking.defrag.schedulers "[]") }}
{{- include "fallow.flag" (list "--autoscaling-provider" .Values.autoscaling.provider "none") }}
{{- include "fallow.flag" (list "--autoscaling-reconcile-interval" .Values.autoscaling.reconcileInterval "30s") }}
{{- include "fallow.flag" (list "--autoscaling-instance-score" .Values.autoscaling.instanceScore "price") }}
{{- include "fallow.flag" (list "--autoscaling-aws-region" .Values.autoscaling.aws.region "") }}
{{- include "fallow.flag" (list "--autoscaling-aws-endpoint" .Values.autoscaling.aws.endpoint "") }}
{{- include "fallow.flag" (list "--autoscaling-aws-interruption-queue-url" .Values.autoscaling.aws.interruptionQueueUrl "") }}
{{- include "fallow.flag" (list "--autoscaling-gcp-project" .Values.autoscaling.gcp.project "") }}
{{- include "fallow.flag" (list "--autoscaling-gcp-endpoint" .Values.autoscaling.gcp.endpoint "") }}
{{- include "fallow.flag" (list "--autoscaling-azure-subscription" .Values.autoscaling.azure.subscription "") }}
{{- include "fallow.flag" (list "--autoscaling-azure-resource-group" .Values.autoscaling.azure.resourceGroup "") }}
{{- include "fallow.flag" (list "--autoscaling-azure-endpoint" .Values.autoscaling.azure.endpoint "") }}
{{- end }}
{{- define "fallow.args.webhook" -}}
{{- include "fallow.flag" (list "--rewrite-requests" .Values.admissionWebhook.rewriteRequests "false") }}
{{- end }}
