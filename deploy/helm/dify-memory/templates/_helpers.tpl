{{- define "dify-memory.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dify-memory.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dify-memory.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "dify-memory.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "dify-memory.serviceAccountName" -}}
{{- default (include "dify-memory.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "dify-memory.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* Settings of one role: those of both, then its own. Takes a dict of root and role. */}}
{{- define "dify-memory.settings" -}}
{{- $own := index .root.Values .role "settings" -}}
{{- range $name, $value := mergeOverwrite (deepCopy .root.Values.settings) $own }}
{{- /* Helm reads every number as a float and would write 1048576 as 1.048576e+06. */}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
{{ $name }}: {{ int64 $value | toString | quote }}
{{- else }}
{{ $name }}: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- if .root.Values.policyConfigMap }}
MEMORY_POLICY_FILE: /etc/dify-memory/policy.yaml
{{- end }}
{{- if and .root.Values.modelsSecret (eq .role "api") }}
MEMORY_GATEWAY_MODELS_FILE: /etc/dify-memory/models.yaml
{{- end }}
{{- end -}}

{{/* What the pods of both roles share. Takes a dict of root and role. */}}
{{- define "dify-memory.podMetadata" -}}
labels:
  {{- include "dify-memory.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .role }}
annotations:
  checksum/settings: {{ include "dify-memory.settings" . | sha256sum }}
  dify-memory/secret-version: {{ .root.Values.secretVersion | quote }}
  {{- if and .root.Values.monitoring.annotations (or (eq .role "api") .root.Values.worker.metricsPort) }}
  prometheus.io/scrape: "true"
  prometheus.io/path: /metrics
  prometheus.io/port: {{ ternary "8000" (int .root.Values.worker.metricsPort | toString) (eq .role "api") | quote }}
  {{- end }}
  {{- with (index .root.Values .role "podAnnotations") }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "dify-memory.podSpec" -}}
serviceAccountName: {{ include "dify-memory.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "dify-memory.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
  {{- if include "dify-memory.files" . }}
  - name: files
    projected:
      sources:
        {{- include "dify-memory.files" . | nindent 8 }}
  {{- end }}
{{- with (index .root.Values .role "nodeSelector") }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index .root.Values .role "tolerations") }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (index .root.Values .role "affinity") }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the files that settings name come from; empty without any. Takes a dict of root and role. */}}
{{- define "dify-memory.files" -}}
{{- if .root.Values.policyConfigMap }}
- configMap:
    name: {{ .root.Values.policyConfigMap }}
    items: [{key: policy.yaml, path: policy.yaml}]
{{- end }}
{{- if and .root.Values.modelsSecret (eq .role "api") }}
- secret:
    name: {{ .root.Values.modelsSecret }}
    items: [{key: models.yaml, path: models.yaml}]
{{- end }}
{{- end -}}

{{- define "dify-memory.container" -}}
image: {{ include "dify-memory.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
envFrom:
  - configMapRef:
      name: {{ include "dify-memory.fullname" .root }}-{{ .role }}
  - secretRef:
      name: {{ required "existingSecret: name a Secret with MEMORY_REDIS_URL and MEMORY_API_KEY" .root.Values.existingSecret }}
  {{- with (index .root.Values .role "existingSecret") }}
  - secretRef:
      name: {{ . }}
  {{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- if include "dify-memory.files" . }}
  - name: files
    mountPath: /etc/dify-memory
    readOnly: true
  {{- end }}
resources:
  {{- toYaml (index .root.Values .role "resources") | nindent 2 }}
{{- end -}}

{{/* An autoscaler of one role. Takes a dict of root and role. */}}
{{- define "dify-memory.autoscaler" -}}
{{- $values := index .root.Values .role "autoscaling" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "dify-memory.fullname" .root }}-{{ .role }}
  labels:
    {{- include "dify-memory.labels" .root | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "dify-memory.fullname" .root }}-{{ .role }}
  minReplicas: {{ $values.minReplicas }}
  maxReplicas: {{ $values.maxReplicas }}
  metrics:
    # Kubernetes takes whichever wants more pods, and the CPU alone while the adapter does not answer.
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $values.targetCPUUtilizationPercentage }}
    {{- if $values.externalMetric.enabled }}
    - type: External
      external:
        metric:
          name: {{ required "autoscaling.externalMetric.name is missing" $values.externalMetric.name }}
          {{- with $values.externalMetric.selector }}
          selector:
            matchLabels:
              {{- toYaml . | nindent 14 }}
          {{- end }}
        target:
          type: Value
          value: {{ required "autoscaling.externalMetric.targetValue is missing" $values.externalMetric.targetValue | quote }}
    {{- end }}
{{- end -}}
