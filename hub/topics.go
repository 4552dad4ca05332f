package hub

import (
	"fmt"
	"strings"

	"eventhub/admin"
	"eventhub/internal/topicconf"
)

// topics reads the settings of topics that the configuration has.
func (c *Config) topics() ([]admin.SettingsEntry, error) {
	if c.TopicsFile == "" {
		return topicconf.ParseFile("topics", c.Topics)
	}
	return topicconf.ReadFile(c.TopicsFile)
}

// validateTopics returns everything that is wrong with them, one error for each line.
func (c *Config) validateTopics() (errs []error) {
	_, err := c.topics()
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		errs = append(errs, fmt.Errorf("topics file: %s%s", strings.TrimSuffix(line, "\n"), c.from("topics_file")))
	}
	return errs
}
