{{- define "lorikeet.dns" -}}
- ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end }}

{{- define "lorikeet.toDatabase" -}}
- to:
    {{- if .Values.database.create }}
    - podSelector:
        matchLabels:
          {{- include "lorikeet.selector" (list . "database") | nindent 10 }}
    {{- else }}
    {{- toYaml .Values.database.peers | nindent 4 }}
    {{- end }}
  ports:
    - protocol: TCP
      port: {{ .Values.database.port }}
{{- end }}

{{- define "lorikeet.toOutside" -}}
{{- with .Values.networkPolicy.outside }}
- to:
    {{- toYaml . | nindent 4 }}
  ports:
    - protocol: TCP
      port: 443
{{- end }}
{{- end }}
