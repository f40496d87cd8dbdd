{{- define "lorikeet.rayNode" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
image: {{ include "lorikeet.image" (list $root (mergeOverwrite (deepCopy $root.Values.image.engine) (default dict $root.Values.ray.image))) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{ include "lorikeet.container" $root }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: ray
    mountPath: /tmp/ray
  - name: shm
    mountPath: /dev/shm
  {{- include (index . 2) $root | nindent 2 }}
{{- end }}

{{/* Probes of a node's process of Ray, by a port that it opens. */}}
{{- define "lorikeet.rayProbes" -}}
startupProbe:
  tcpSocket:
    port: {{ . }}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  tcpSocket:
    port: {{ . }}
  periodSeconds: 20
  failureThreshold: 6
readinessProbe:
  tcpSocket:
    port: {{ . }}
  periodSeconds: 5
{{- end }}

{{- define "lorikeet.rayVolumes" -}}
{{- include "lorikeet.sharedVolumes" . }}
- name: ray
  emptyDir:
    sizeLimit: {{ .Values.tmpSize }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.ray.shmSize }}
{{- end }}
