package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"eventhub"
	"eventhub/wire"
)

const (
	// leastRenewal is the least time from a token to the question for the next one, and
	// leastRetry after a question without success. Hubs take a token for some seconds longer.
	leastRenewal = 5 * time.Second
	leastRetry   = time.Second
	// longestRenewal is how long a token counts as fresh, however far its end is: a timer far
	// ahead would not notice that a machine has slept.
	longestRenewal = 24 * time.Hour
	// renewalWait bounds one question for a token, and the hub's answer to it.
	renewalWait = 10 * time.Second
	// maxTokenFile bounds a token file, in bytes.
	maxTokenFile = 16 << 10
)

// WithTokenFile presents the token of a file, which is read anew before every AUTH and every
// request of an Admin, so that it may be replaced while the client runs.
func WithTokenFile(path string) Option {
	return WithTokenSource(func(context.Context) (string, error) { return readToken(path) })
}

// readToken returns what a file holds, without the newline at its end. Errors repeat nothing of
// it.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return "", err
	}
	token := strings.TrimRight(string(b), "\r\n")
	switch {
	case len(b) > maxTokenFile:
		return "", fmt.Errorf("%s has more than %d bytes", path, maxTokenFile)
	case token == "":
		return "", fmt.Errorf("%s is empty", path)
	}
	return token, nil
}

// endsWith reports whether a client that was connected ends because a hub denies it. A JSON Web
// Token is refused for what is over with the next one: it has ended and the source is late, or
// its key is too new for the hub.
func (c *Client) endsWith(denial error) bool {
	return isDenial(denial) && !(c.cfg.tokensChange && eventhub.ErrorCode(denial) == eventhub.CodeJWTInvalid)
}

// endOf returns when a token says that it ends: exp of a JSON Web Token. It is not checked
// here, and only says when to ask for the next one.
func endOf(token string) (time.Time, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || !(claims.Exp > 0 && claims.Exp < 1<<40) {
		return time.Time{}, false
	}
	return time.Unix(int64(claims.Exp), 0), true
}

// renewIn returns in what time the successor of a token that ends then is asked for: when a
// quarter of what is left is left. What fails is tried again by the same rule, ever sooner.
func renewIn(end time.Time, least time.Duration) time.Duration {
	return min(max(time.Until(end)/4*3, least), longestRenewal)
}

// renew presents new tokens over a connection before the one that it has ends, so that the hub
// does not close it. It returns with the connection, or where the token does not end. What
// fails leaves the token that there is; when that ends the hub closes the connection, and the
// next one asks for a token anyway.
func (c *Client) renew(n *conn) {
	for least := leastRenewal; ; {
		end, ends := endOf(n.token)
		if !ends {
			return
		}
		timer := time.NewTimer(renewIn(end, least))
		select {
		case <-timer.C:
		case <-n.gone:
			timer.Stop()
			return
		}
		before := n.token
		if err := c.renewOnce(n); err != nil && c.ctx.Err() == nil {
			c.cfg.logger.Warn("the token was not renewed", "error", err, "ends", end)
		}
		if least = leastRenewal; n.token == before {
			least = leastRetry
		}
	}
}

// renewOnce asks for a token and presents it, if it is another one.
func (c *Client) renewOnce(n *conn) error {
	ctx, cancel := context.WithTimeout(c.ctx, renewalWait)
	defer cancel()
	next, _, err := c.cfg.token(ctx)
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	if next == n.token {
		return nil
	}
	c.mu.Lock()
	if c.conn != n || c.phase == closed {
		c.mu.Unlock()
		return errors.New("the connection is lost")
	}
	e := newExchange(renewal)
	e.number(c, 1)
	e.add(wire.AppendAuth(e.frames, e.next(), next, true, ""), 0)
	c.register(e)
	c.mu.Unlock()
	if err := c.wait(ctx, e); err != nil {
		return err
	}
	_, err = e.err()
	clear(e.frames) // it has a secret
	e.recycle()
	if err == nil {
		n.token = next
		c.mu.Lock()
		n.shown = next
		c.mu.Unlock()
		c.cfg.logger.Debug("token renewed")
	}
	return err
}
