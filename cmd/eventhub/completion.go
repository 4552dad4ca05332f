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

// completeNames completes TOPIC, and behind it GROUP where a command takes one,
// with what the hub has. Where no hub answers there is nothing to offer.
func completeNames(r *reach, many, groups bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many && !(groups && len(args) == 1) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionWait)
		defer cancel()
		api, err := r.api(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer api.Close()
		var names []string
		if groups && len(args) == 1 {
			found, _ := api.Groups(ctx, eventhub.GroupQuery{Topic: args[0]}) // what there is
			for _, g := range found {
				names = append(names, g.Group)
			}
		} else {
			found, _ := api.Topics(ctx, "", eventhub.MaxPage)
			for _, t := range found {
				names = append(names, t.Topic)
			}
		}
		return slices.DeleteFunc(names, func(name string) bool {
			return !strings.HasPrefix(name, typed) || slices.Contains(args, name)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}
