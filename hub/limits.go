package hub

import (
	"log/slog"

	"eventhub/auth/limits"
	"eventhub/internal/livefile"
)

// limitsSetting is the setting of the file of limits, as users know it.
const limitsSetting = "limits_file"

// limitsFile returns the file of limits, which l takes, or nil where there is none.
func (c *Config) limitsFile(l *limits.Limits, log *slog.Logger) *livefile.Files {
	if c.LimitsFile == "" {
		return nil
	}
	return livefile.New(log, func(contents [][]byte) error { return l.Take(c.LimitsFile, contents[0]) }, livefile.File{Setting: limitsSetting, Path: c.LimitsFile})
}

// validateLimits returns what is wrong with the file.
func (c *Config) validateLimits() error {
	if f := c.limitsFile(limits.New(), nil); f != nil {
		return f.Open()
	}
	return nil
}

// Look reads again at once what is read again when it changes: the certificate and the limits.
func (h *Hub) Look() {
	for _, f := range h.files {
		f.Look()
	}
}
