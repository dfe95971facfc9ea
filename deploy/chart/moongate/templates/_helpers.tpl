{{- define "moongate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "moongate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "moongate.labels" -}}
{{ include "moongate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "moongate.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "moongate.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "moongate.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The content of gateway.json. */}}
{{- define "moongate.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if .Values.metrics.enabled }}
{{- $config = mergeOverwrite $config (dict "telemetry" (dict "prometheus" (printf "0.0.0.0:%d" (int .Values.metrics.port)))) }}
{{- end }}
{{- if .Values.tlsSecret }}
{{- $tls := dict "certificate" "/run/moongate-tls/tls.crt" "key" "/run/moongate-tls/tls.key" }}
{{- $config = mergeOverwrite $config (dict "server" (dict "http" (dict "tls" $tls))) }}
{{- end }}
{{- toPrettyJson $config }}
{{- end }}

{{- define "moongate.claim" -}}
{{ .Values.persistence.existingClaim | default (include "moongate.name" .) }}
{{- end }}

{{/* The scheme of the probes: the gateway serves HTTPS itself with `server.http.tls`. */}}
{{- define "moongate.scheme" -}}
{{- if or .Values.tlsSecret (dig "server" "http" "tls" "" .Values.config) }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- define "moongate.hasSeveral" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}true{{ end }}
{{- end }}

{{/* Whether each pod has an empty state folder of its own: the database has the state, and the configuration the installation key. */}}
{{- define "moongate.hasOwnState" -}}
{{- $storage := dig "storage" (dict) .Values.config }}
{{- if and $storage.url $storage.installationKey (not .Values.persistence.existingClaim) (ne .Values.persistence.accessMode "ReadWriteMany") }}true{{ end }}
{{- end }}

{{/* Stops with an error if several gateways cannot share their state, or if pods are killed before they have finished their calls. */}}
{{- define "moongate.check" -}}
{{- $needed := add (dig "server" "http" "leaveSeconds" 0 .Values.config) (dig "server" "http" "drainSeconds" 10 .Values.config) }}
{{- if le (int .Values.terminationGracePeriodSeconds) (int $needed) }}
{{- fail (printf "A stopping pod would be killed during its last calls: set terminationGracePeriodSeconds above %d, which is config.server.http.leaveSeconds and config.server.http.drainSeconds together." (int $needed)) }}
{{- end }}
{{- if .Values.metrics.serviceMonitor.enabled }}
{{- if not .Values.metrics.enabled }}
{{- fail "A ServiceMonitor needs metrics: set metrics.enabled to true." }}
{{- end }}
{{- if ne .Values.service.type "ClusterIP" }}
{{- fail "A ServiceMonitor needs service.type ClusterIP: a Service that is open to the outside does not publish metrics." }}
{{- end }}
{{- end }}
{{- if include "moongate.hasSeveral" . }}
{{- if eq (include "moongate.scheme" .) "HTTPS" }}
{{- fail "More than one replica cannot serve HTTPS, because no certificate names the addresses of the pods: set ingress.tlsSecret instead of tlsSecret and config.server.http.tls." }}
{{- end }}
{{- if not (dig "storage" "url" "" .Values.config) }}
{{- fail "More than one replica needs a database: set config.storage.url to a PostgreSQL server." }}
{{- end }}
{{- if not (or (dig "storage" "installationKey" "" .Values.config) (eq .Values.persistence.accessMode "ReadWriteMany")) }}
{{- fail "More than one replica needs the same installation key: set config.storage.installationKey to a reference, or persistence.accessMode to ReadWriteMany." }}
{{- end }}
{{- end }}
{{- end }}

{{- define "moongate.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: { drop: ["ALL"] }
{{- end }}
