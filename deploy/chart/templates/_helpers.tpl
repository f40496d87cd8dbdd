{{/* Labels that select the pods of a component. Called with (list . COMPONENT). */}}
{{- define "lorikeet.selector" -}}
app.kubernetes.io/name: lorikeet
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of a component's objects. Called with (list . COMPONENT). */}}
{{- define "lorikeet.labels" -}}
{{ include "lorikeet.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{/* The reference of an image. Called with (list . IMAGE). */}}
{{- define "lorikeet.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 0).Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{/* What every pod has: no token of the API server, and no variables of services, which would begin with LORIKEET_. */}}
{{- define "lorikeet.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "lorikeet.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Where pods of a component go. Called with (list . COMPONENT VALUES), of VALUES spread, nodeSelector and tolerations. */}}
{{- define "lorikeet.placement" -}}
{{- $values := index . 2 -}}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "lorikeet.selector" . | nindent 8 }}
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ $values.spread }}
    labelSelector:
      matchLabels:
        {{- include "lorikeet.selector" . | nindent 8 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A volume with some of the Secret's entries. Called with (list . ENTRY...). */}}
{{- define "lorikeet.secret" -}}
- name: secret
  secret:
    secretName: {{ (index . 0).Values.secret }}
    defaultMode: 0440
    items:
      {{- range rest . }}
      - key: {{ . }}
        path: {{ . }}
      {{- end }}
{{- end }}

{{/* Variables of gateways and agents alike. */}}
{{- define "lorikeet.environment" -}}
- name: LORIKEET_DATA_DIR
  value: /data/lorikeet
- name: DATABASE_URL_FILE
  value: /run/secrets/lorikeet/database-url
- name: LORIKEET_ADAPTER_STORE
  value: {{ .Values.stores.adapters | quote }}
- name: LORIKEET_FILE_STORE
  value: {{ .Values.stores.files | quote }}
{{- end }}

{{/* Settings of the values, as variables. Called with a list of maps, of which the later ones rule. */}}
{{- define "lorikeet.settings" -}}
{{- $all := dict -}}
{{- range . -}}{{- $all = mergeOverwrite $all (deepCopy .) -}}{{- end -}}
{{- range $name, $value := $all }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "lorikeet.environmentFrom" -}}
{{- with .Values.environmentSecrets }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Volumes that gateways and engines share, and where they are mounted. */}}
{{- define "lorikeet.sharedVolumes" -}}
{{ include "lorikeet.authority" . }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSize }}
{{- with .Values.weights.claim }}
- name: weights
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- if include "lorikeet.storeClaim" . }}
- name: stores
  persistentVolumeClaim:
    claimName: {{ include "lorikeet.storeClaim" . }}
{{- end }}
{{- end }}

{{/* The certificate by which the database proves itself, where a Secret has it. */}}
{{- define "lorikeet.authority" -}}
{{- with .Values.database.authority }}
- name: database-authority
  secret:
    secretName: {{ . }}
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- end }}

{{- define "lorikeet.authorityMount" -}}
{{- if .Values.database.authority }}
- name: database-authority
  mountPath: /run/secrets/database
  readOnly: true
{{- end }}
{{- end }}

{{- define "lorikeet.sharedMounts" -}}
{{ include "lorikeet.authorityMount" . }}
- name: secret
  mountPath: /run/secrets/lorikeet
  readOnly: true
{{ include "lorikeet.folders" . }}
{{- end }}

{{/* Folders without secrets: for what is temporary, weights, and stores. */}}
{{- define "lorikeet.folders" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.weights.claim }}
- name: weights
  mountPath: /models
  readOnly: true
{{- end }}
{{- if include "lorikeet.storeClaim" . }}
- name: stores
  mountPath: /stores
{{- end }}
{{- end }}

{{/* The name of the volume of adapters and files; empty where they are in buckets. */}}
{{- define "lorikeet.storeClaim" -}}
{{- if .Values.stores.claim.existing -}}
{{ .Values.stores.claim.existing }}
{{- else if .Values.stores.claim.create -}}
{{ .Release.Name }}-stores
{{- end -}}
{{- end }}

{{/* The claim of a pod's own data. Called with (dict size storageClass). */}}
{{- define "lorikeet.dataClaim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end }}

{{/* The replicas that a pool begins with: as many as are asked for, the lower bound, or the most pods that are to follow its
     load. Called with (list . POOL). */}}
{{- define "lorikeet.poolReplicas" -}}
{{- $pool := index . 1 -}}
{{- if $pool.scaling -}}
{{ $pool.scaling.min }}
{{- else if hasKey $pool "replicas" -}}
{{ $pool.replicas }}
{{- else -}}
{{- $most := 0 -}}
{{- range (index . 0).Values.engines -}}
{{- if and .autoscaling (eq (.autoscaling).pool $pool.name) -}}{{- $most = add $most .autoscaling.maxPods -}}{{- end -}}
{{- end -}}
{{ $most }}
{{- end -}}
{{- end }}

{{/* The first and the last port of engines. */}}
{{- define "lorikeet.linkPorts" -}}
- protocol: TCP
  port: {{ .Values.link.firstPort }}
  endPort: {{ .Values.link.lastPort }}
{{- end }}
