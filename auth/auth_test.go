package auth

import (
	"context"
	"strings"
	"testing"

	"eventhub"
)

func TestStatic(t *testing.T) {
	v := Static("s3cret")
	for _, tt := range []struct {
		name, token string
		given       bool
		want        eventhub.Code
	}{
		{"right", "s3cret", true, ""},
		{"none", "", false, eventhub.CodeNoToken},
		{"empty", "", true, eventhub.CodeNoToken},
		{"wrong", "s3creT", true, eventhub.CodeBadToken},
		{"prefix", "s3cre", true, eventhub.CodeBadToken},
		{"longer", "s3crets", true, eventhub.CodeBadToken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := v.Verify(context.Background(), tt.token, tt.given)
			if got := eventhub.ErrorCode(err); got != tt.want {
				t.Fatalf("Verify(%q) = %v; want code %q", tt.token, err, tt.want)
			}
			if err != nil && tt.token != "" && strings.Contains(err.Error(), tt.token) {
				t.Errorf("the error repeats the token: %v", err)
			}
			if tt.want == eventhub.CodeNoToken && !strings.Contains(err.Error(), "Authorization: Bearer") {
				t.Errorf("%v; the callers of HTTP are to read how they give one", err)
			}
			if (p.Name != "") != (tt.want == "") {
				t.Errorf("principal %+v with error %v", p, err)
			}
		})
	}
}

func TestOpenTakesAnything(t *testing.T) {
	for _, token := range []string{"", "whatever"} {
		if _, err := Open().Verify(context.Background(), token, token != ""); err != nil {
			t.Errorf("Verify(%q) = %v", token, err)
		}
	}
}
