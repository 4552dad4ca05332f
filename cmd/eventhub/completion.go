package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

// completionWait is how long a shell's Tab may wait for the hub.
const completionWait = time.Second

func completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print a completion script for a shell",
		Example: `  bash:        source <(eventhub completion bash)
  zsh:         eventhub completion zsh > "${fpath[1]}/_eventhub"
  fish:        eventhub completion fish | source
  powershell:  eventhub completion powershell | Out-String | Invoke-Expression`,
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one shell: " + strings.Join(shells, ", "))
			}
			if !slices.Contains(shells, args[0]) {
				return fmt.Errorf("shell %q is not one of %s", args[0], strings.Join(shells, ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), results(cmd)
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return root.GenPowerShellCompletionWithDesc(out)
		},
	}
}

// completeNames completes TOPIC, and after it GROUP where a command takes one,
// with what the hub has. Where no hub answers there is nothing to offer.
func completeNames(r *reach, many, groups bool) cobra.CompletionFunc {
	return complete(r, func(ctx context.Context, adm *client.Admin, args []string) []string {
		switch {
		case len(args) == 0 || many:
			return topicNames(ctx, adm)
		case groups && len(args) == 1:
			return groupNames(ctx, adm, args[0])
		}
		return nil
	})
}

// completeRemovable completes TOPIC or a PATTERN, and after it GROUP.
func completeRemovable(r *reach) cobra.CompletionFunc {
	return complete(r, func(ctx context.Context, adm *client.Admin, args []string) []string {
		if len(args) > 1 {
			return nil
		}
		if len(args) == 1 && !eventhub.IsPattern(args[0]) {
			return groupNames(ctx, adm, args[0])
		}
		var names []string
		patterns, _ := adm.Patterns(ctx, "") // what there is, as below
		for _, p := range patterns {
			if len(args) == 0 {
				names = append(names, p.Pattern)
			} else if p.Pattern == args[0] {
				names = append(names, p.Group)
			}
		}
		if len(args) == 0 {
			names = append(names, topicNames(ctx, adm)...)
		}
		return names
	})
}

// completePatternedGroups completes GROUP with those that have patterns.
func completePatternedGroups(r *reach) cobra.CompletionFunc {
	return complete(r, func(ctx context.Context, adm *client.Admin, args []string) (names []string) {
		if len(args) > 0 {
			return nil
		}
		patterns, _ := adm.Patterns(ctx, "")
		for _, p := range patterns {
			names = append(names, p.Group)
		}
		return names
	})
}

// completeSettings completes NAME with the names that have settings.
func completeSettings(r *reach) cobra.CompletionFunc {
	return complete(r, func(ctx context.Context, adm *client.Admin, args []string) (names []string) {
		if len(args) > 0 {
			return nil
		}
		entries, _ := adm.SettingsEntries(ctx, "", admin.MaxPage)
		for _, e := range entries {
			names = append(names, e.Name)
		}
		return names
	})
}

// completeScheduled completes TOPIC and ID with what is published later.
func completeScheduled(r *reach) cobra.CompletionFunc {
	return complete(r, func(ctx context.Context, adm *client.Admin, args []string) (names []string) {
		if len(args) > 1 {
			return nil
		}
		var q admin.ScheduleQuery
		if len(args) == 1 {
			q.Topic = args[0]
		}
		found, _ := adm.Scheduled(ctx, q)
		for _, e := range found {
			if len(args) == 0 {
				names = append(names, e.Topic)
			} else {
				names = append(names, e.ID)
			}
		}
		return names
	})
}

func topicNames(ctx context.Context, adm *client.Admin) (names []string) {
	found, _ := adm.Topics(ctx, "", admin.MaxPage)
	for _, t := range found {
		names = append(names, t.Topic)
	}
	return names
}

func groupNames(ctx context.Context, adm *client.Admin, topic string) (names []string) {
	found, _ := adm.Groups(ctx, admin.GroupQuery{Topic: topic})
	for _, g := range found {
		names = append(names, g.Group)
	}
	return names
}

// complete offers, each once, the names that go on as typed and are not there yet.
func complete(r *reach, names func(ctx context.Context, adm *client.Admin, args []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionWait)
		defer cancel()
		adm, err := r.admin(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer adm.Close()
		found := names(ctx, adm, args)
		slices.Sort(found)
		return slices.DeleteFunc(slices.Compact(found), func(name string) bool {
			return !strings.HasPrefix(name, typed) || slices.Contains(args, name)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}
