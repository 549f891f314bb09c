{{/* The name of all objects. Kubernetes adds a hash to a StatefulSet's, in a label of at most 63 characters. */}}
{{- define "countersign.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods. It cannot be changed later, and is what deploy/kubernetes.yaml always had. */}}
{{- define "countersign.selector" -}}
app.kubernetes.io/name: {{ include "countersign.fullname" . }}
{{- end -}}

{{- define "countersign.labels" -}}
{{ include "countersign.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
{{- end -}}

{{- define "countersign.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "countersign.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{ .Values.publicUrl }}
{{- else if .Values.ingress.enabled -}}
https://{{ .Values.ingress.host }}
{{- end -}}
{{- end -}}

{{/* The claim of the shared key file. */}}
{{- define "countersign.keysClaim" -}}
{{ .Values.keys.existingClaim | default (printf "%s-keys" (include "countersign.fullname" .)) }}
{{- end -}}

{{/*
The server's configuration file: the settings that hold no secret and differ from the defaults.
A file, because commands that are run in a pod read it too, and a variable cannot hold a list of
witnesses.
*/}}
{{- define "countersign.config" -}}
{{- $config := dict -}}
{{- with include "countersign.publicUrl" . }}{{ $_ := set $config "public-url" . }}{{ end -}}
{{- with .Values.instanceName }}{{ $_ := set $config "instance-name" . }}{{ end -}}
{{- with .Values.trustedProxies }}{{ $_ := set $config "trusted-proxies" . }}{{ end -}}
{{- if not (kindIs "invalid" .Values.publicRate) }}{{ $_ := set $config "public-rate" .Values.publicRate }}{{ end -}}
{{- if not (kindIs "invalid" .Values.failureRate) }}{{ $_ := set $config "failure-rate" .Values.failureRate }}{{ end -}}
{{- if .Values.webhooksAllowPrivate }}{{ $_ := set $config "webhooks-allow-private" true }}{{ end -}}
{{- if ne .Values.logLevel "info" }}{{ $_ := set $config "log-level" .Values.logLevel }}{{ end -}}
{{- if ne .Values.logFormat "json" }}{{ $_ := set $config "log-format" .Values.logFormat }}{{ end -}}
{{- with .Values.otlpEndpoint }}{{ $_ := set $config "otlp-endpoint" . }}{{ end -}}
{{- if .Values.sso.issuer -}}
{{- $_ := set $config "oidc-issuer" .Values.sso.issuer -}}
{{- $_ := set $config "oidc-client-id" .Values.sso.clientId -}}
{{- $_ := set $config "oidc-client-secret-file" "/etc/countersign/sso/client-secret" -}}
{{- with .Values.sso.claim }}{{ $_ := set $config "oidc-claim" . }}{{ end -}}
{{- with .Values.sso.name }}{{ $_ := set $config "oidc-name" . }}{{ end -}}
{{- end -}}
{{- if .Values.slack.existingSecret -}}
{{- $_ := set $config "slack-token-file" "/etc/countersign/slack/token" -}}
{{- $_ := set $config "slack-signing-secret-file" "/etc/countersign/slack/signing-secret" -}}
{{- end -}}
{{- with .Values.witnesses }}{{ $_ := set $config "witness" . }}{{ end -}}
{{- with .Values.anchors.tsaUrl }}{{ $_ := set $config "tsa-url" . }}{{ end -}}
{{- if .Values.anchors.tsaRootsConfigMap }}{{ $_ := set $config "tsa-roots" "/etc/countersign/tsa/roots.pem" }}{{ end -}}
{{- with .Values.anchors.tsaPolicy }}{{ $_ := set $config "tsa-policy" . }}{{ end -}}
{{- with .Values.anchors.otsCalendars }}{{ $_ := set $config "ots-calendars" . }}{{ end -}}
{{- with .Values.anchors.bitcoinHeaders }}{{ $_ := set $config "bitcoin-headers" . }}{{ end -}}
{{- if .Values.prices.existingConfigMap }}{{ $_ := set $config "prices" "/etc/countersign/prices/prices.json" }}{{ end -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $config "tls-cert" "/etc/countersign/tls/tls.crt" -}}
{{- $_ := set $config "tls-key" "/etc/countersign/tls/tls.key" -}}
{{- end -}}
{{- if .Values.metrics.enabled }}{{ $_ := set $config "metrics-listen" (printf "0.0.0.0:%v" .Values.metrics.port) }}{{ end -}}
{{- if $config }}{{ toYaml $config }}{{ end -}}
{{- end -}}

{{/* What the schema cannot say, or not so that anyone would understand it. */}}
{{- define "countersign.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.database.existingSecret) -}}
{{- fail "replicas: more than one needs PostgreSQL, because two servers cannot share an embedded database: put its address into a Secret and name that in database.existingSecret" -}}
{{- end -}}
{{- if .Values.ingress.enabled -}}
{{- if not (and .Values.ingress.host .Values.ingress.tlsSecret) -}}
{{- fail "ingress: host and tlsSecret are needed: API keys must not be sent in the clear" -}}
{{- end -}}
{{- if not .Values.trustedProxies -}}
{{- fail "ingress: trustedProxies must name the network of the ingress controller's pods; otherwise all clients share one rate limit" -}}
{{- end -}}
{{- end -}}
{{- with .Values.sso -}}
{{- if .issuer -}}
{{- if not (and .clientId .existingSecret) -}}
{{- fail "sso.issuer needs sso.clientId and sso.existingSecret: register a client at the provider, put its secret into a Secret and name that" -}}
{{- end -}}
{{- if not (hasPrefix "https://" (include "countersign.publicUrl" $)) -}}
{{- fail "sso.issuer needs an ingress, or a publicUrl with https: the provider sends browsers back to it" -}}
{{- end -}}
{{- else if or .clientId .existingSecret -}}
{{- fail "sso.clientId and sso.existingSecret need sso.issuer: without it there is no single sign-on" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.slack.existingSecret (not (hasPrefix "https://" (include "countersign.publicUrl" .))) -}}
{{- fail "slack.existingSecret needs an ingress, or a publicUrl with https: Slack sends there which buttons were pressed" -}}
{{- end -}}
{{- if and .Values.anchors.tsaUrl (not .Values.anchors.tsaRootsConfigMap) -}}
{{- fail "anchors.tsaUrl needs anchors.tsaRootsConfigMap: tokens cannot be verified without root certificates" -}}
{{- end -}}
{{- if and .Values.anchors.bitcoinHeaders (not .Values.anchors.otsCalendars) -}}
{{- fail "anchors.bitcoinHeaders is only used for OpenTimestamps proofs: name calendars in anchors.otsCalendars" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor needs metrics.enabled" -}}
{{- end -}}
{{- if and .Values.metrics.enabled (eq (int .Values.metrics.port) 8080) -}}
{{- fail "metrics.port: the server itself listens on 8080" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.database.existingSecret (not .Values.networkPolicy.egress) -}}
{{- fail "networkPolicy.egress must have a rule for the database, or the server cannot reach it" -}}
{{- end -}}
{{- end -}}
