package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Listen listens on a TCP address.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// NewHTTPServer returns a server with the timeouts and limits of all servers here.
func NewHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// ShutDown stops servers after their requests in flight, or after shutdownTimeout.
func ShutDown(ctx context.Context, servers []*http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	var errs []error
	for _, server := range servers {
		if err := server.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("some requests were still in flight after %s: %w", shutdownTimeout, err), server.Close())
		}
	}
	return errors.Join(errs...)
}

// LogLevel returns the level of a --log-level flag.
func LogLevel(name string) slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(name)) // the flag's enum allows only valid names
	return level
}

// shutdownTimeout is how long requests in flight may take after a server was told to
// stop.
const shutdownTimeout = 30 * time.Second
