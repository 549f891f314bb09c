package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const serviceName = "countersign"

// Traces sends spans to a collector.
type Traces struct{ provider *sdktrace.TracerProvider }

// StartTraces sends spans to the collector at endpoint, the base address of an OTLP/HTTP
// receiver such as http://localhost:4318. Headers, certificates and sampling are read from the
// standard OTEL_* variables.
func StartTraces(ctx context.Context, endpoint string, build Build, log *slog.Logger) (*Traces, error) {
	target, err := tracesURL(endpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(target))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	// The environment comes last, so that OTEL_SERVICE_NAME can rename the service.
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", serviceName), attribute.String("service.version", build.Version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("traces: %w", err), exporter.Shutdown(ctx))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces", "error", err) }))
	return &Traces{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))}, nil
}

func tracesURL(endpoint string) (string, error) {
	base, err := url.Parse(endpoint)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		// The error omits the text, which may contain a password.
		return "", errors.New("the OTLP endpoint must have the form http://host:4318")
	}
	return base.JoinPath("v1", "traces").String(), nil
}

// Middleware records a span for every request, named by its route.
//
// The instrumentation gets a copy of the request without its path, query, host and headers: what
// it does not see it cannot export, whichever attributes later versions record.
func (t *Traces) Middleware(next http.Handler, route func(*http.Request) string) http.Handler {
	instrument := otelhttp.NewMiddleware("",
		otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithMeterProvider(noop.NewMeterProvider()),
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithServerName(serviceName),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Pattern }),
	)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := http.HandlerFunc(func(w http.ResponseWriter, shown *http.Request) {
			original := r.WithContext(shown.Context())
			original.Body = shown.Body
			next.ServeHTTP(w, original)
		})
		instrument(inner).ServeHTTP(w, stripped(r, route(r)))
	})
}

// stripped returns a copy of a request that has only the route and the trace context.
func stripped(r *http.Request, route string) *http.Request {
	shown := r.WithContext(r.Context())
	shown.URL, shown.RequestURI, shown.Host, shown.Pattern = &url.URL{}, "", "", route
	shown.Header = make(http.Header, 2)
	for _, name := range []string{"Traceparent", "Tracestate"} {
		if values := r.Header[name]; len(values) > 0 {
			shown.Header[name] = values
		}
	}
	return shown
}

const flushTimeout = 5 * time.Second

// Shutdown sends the remaining spans. It is bounded by flushTimeout: a collector that does not
// answer must not block the server's shutdown.
func (t *Traces) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	return nil
}
