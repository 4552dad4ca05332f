package bus

import (
	"context"
	"errors"
	"io/fs"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// Backup implements admin.Backuper. What groups have acked goes to the store
// first: it may be known in memory only.
func (b *Bus) Backup(ctx context.Context, dir string) error {
	if dir == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "the directory of the backup is empty")
	}
	// A write that fails breaks the store. So a copy that could leave no room for one is not begun.
	if err := b.space.CheckCopy(); err != nil {
		return err
	}
	b.committer.Flush()
	if err := b.committer.Do(ctx, commit.NewWrite(store.Unit{}, nil)); err != nil {
		return err
	}
	err := b.store.Checkpoint(ctx, dir)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrUnsupported):
		return eventhub.Wrap(eventhub.CodeUnsupportedOp, err, "the hub's store can not be backed up: it keeps nothing")
	case errors.Is(err, fs.ErrExist):
		return eventhub.Wrap(eventhub.CodeBadRequest, err, "the directory of the backup is there already; it must not be")
	}
	return storeError(err, "write a backup")
}
