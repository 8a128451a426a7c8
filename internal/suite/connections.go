package suite

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// connections is about how the store is reached and spoken to.
var connections = tests{
	{"making a handler dials nobody", newDialsNobody},
	{"making a handler needs no store", newNeedsNoStore},
	{"requests one after another share a connection", oneConnection},
	{"a store that forgot the script is told it once", scriptForgotten},
	{"a store that keeps forgetting the script loses no count", scriptForgottenUnderLoad},
	{"answers in single bytes are whole answers", fragments},
	{"a late answer reaches nobody", lateAnswers},
	{"a client that hangs up takes nobody with it", hangUpInABatch},
	{"a user without TIME is counted by the gateway's clock", withoutTime},
	{"the database is selected", database},
	{"a socket is reached by its path", socket},
	{"log-in works or fails, but never hangs", logIn},
	{"passwords may hold any character", passwords},
	{"passwords are in no log line", passwordsStaySecret},
	{"connections may be encrypted", encrypted},
	{"a certificate that does not fit is refused", certificates},
	{"plain text and TLS do not hang on each other", encryptionMismatch},
	{"settings of the connection tell stores apart", storesApart},
}

func newDialsNobody(t *T) {
	v := t.valkey()
	newHandler := t.configure(t.name(), t.options(v))
	var h http.Handler
	for i := 0; i < 10; i++ {
		var err error
		if h, err = newHandler(served); err != nil {
			t.Fatal(err)
		}
	}
	if v.Accepted() != 0 {
		t.Errorf("%d connections before the first request", v.Accepted())
	}
	if got := t.ask(h, "key"); got.decision != "shared" || v.Accepted() == 0 {
		t.Errorf("the first request is decided %s over %d connections", got.decision, v.Accepted())
	}
}

func newNeedsNoStore(t *T) {
	v := t.valkey()
	v.Stop()
	for _, endpoint := range []string{v.Addr(), "unix://" + filepath.Join(t.TempDir(), "none"), "name.invalid:6379"} {
		if _, err := t.configure(t.name(), t.options(v, "valkey.endpoints", endpoint))(served); err != nil {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

func oneConnection(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "1000"))
	for i := 0; i < 100; i++ {
		t.ask(h, fmt.Sprintf("client %d", i))
	}
	if v.Accepted() != 1 {
		t.Errorf("%d connections for 100 requests in a row", v.Accepted())
	}
}

func scriptForgotten(t *T) {
	v := t.valkey()
	name := t.name()
	h := t.handler(name, t.options(v, "limit", "10"))
	for i := int64(1); i <= 10; i++ {
		v.FlushScripts()
		before, _ := v.calls(name)
		got := t.ask(h, "key")
		if got.status != http.StatusOK || got.remaining != 10-i || got.decision != "shared" {
			t.Errorf("request %d: %d, remaining %d, %s", i, got.status, got.remaining, got.decision)
		}
		if after, _ := v.calls(name); after-before != 2 {
			t.Errorf("request %d took %d calls, want EVALSHA and EVAL", i, after-before)
		}
	}
	if counted := v.counted(name); counted != 10 {
		t.Errorf("%d are counted, want 10", counted)
	}
	_, whole := v.calls(name)
	t.ask(h, "another client")
	if _, after := v.calls(name); after != whole {
		t.Error("the script's body was sent to a store that knows it")
	}
}

func scriptForgottenUnderLoad(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "50"))
	got := rush(16, 300, func(i int) answer {
		if i%20 == 0 {
			v.FlushScripts()
		}
		return t.ask(h, "key")
	})
	t.exact(got, 50, "shared")
}

func fragments(t *T) {
	v := t.valkeyWith(fakevalkey.Config{Password: "p"})
	v.Usually(fakevalkey.Behaviour{Fragment: true})
	h := t.handler(t.name(), t.options(v, "valkey.password", "p", "valkey.db", "3", "limit", "50"))
	t.exact(rush(16, 120, func(int) answer { return t.ask(h, "key") }), 50, "shared")
}

func lateAnswers(t *T) {
	// Each round waits for a request to give up, so that some gateways wait together.
	for gateway := 1; gateway <= 4; gateway++ {
		t.sub(fmt.Sprintf("gateway %d", gateway), func(t *T) {
			t.Parallel()
			alternate(t, 60)
		})
	}
}

// alternate lets a client whose answers come too late and one whose answers come in
// time take turns on the connections of one gateway.
func alternate(t *T, rounds int) {
	const limit = 1_000_000
	v := t.valkey()
	name := t.name()
	length := roomy(600)
	slowKey := headerKey(name, "slow", v.now(), length)
	v.set(slowKey, limit/2)

	var mu sync.Mutex
	gate := make(chan struct{})
	v.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		mu.Lock()
		wait := gate
		mu.Unlock()
		if len(command) > 3 && command[3] == slowKey {
			<-wait
		}
	}})
	unlocked := make(chan struct{})
	close(unlocked)
	open := func(next chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		if gate != unlocked {
			close(gate)
		}
		gate = next
	}
	defer open(unlocked)
	h := t.handler(name, t.options(v, "limit", fmt.Sprint(limit), "window", seconds(length), "valkey.timeout", "50ms"))
	quick := func() bool {
		got := t.ask(h, "quick")
		if got.remaining < limit*3/4 {
			t.Errorf("the quick client is told that %d remain, %s", got.remaining, got.decision)
		}
		return got.decision == "shared"
	}
	t.eventually("a count in the store", quick)
	for i := 0; i < rounds; i++ {
		if got := t.ask(h, "slow"); got.decision != "local" || got.status != http.StatusOK {
			t.Errorf("a request whose answer is held back: %d, %s", got.status, got.decision)
		}
		open(make(chan struct{}))
		t.eventually("a count in the store", quick)
	}
	open(unlocked)
	t.eventually("the slow client's own count", func() bool {
		got := t.ask(h, "slow")
		return got.decision == "shared" && got.remaining < limit/2
	})
}

// The requests wait for the store together, and half of their clients are gone before
// it answers.
func hangUpInABatch(t *T) {
	v := t.valkey()
	name := t.name()
	h := t.handler(name, t.options(v, "limit", "30", "valkey.timeout", "10s"))
	got := []answer{t.ask(h, "key")}
	before, _ := v.calls(name)
	v.Pause()
	ctx, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	answers := make(chan []answer)
	go func() {
		answers <- rush(40, 40, func(i int) answer {
			req := keyed("key")
			if i%2 == 0 {
				req = req.WithContext(ctx)
			}
			return t.send(h, req)
		})
	}()
	t.eventually("a call of the store", func() bool {
		calls, _ := v.calls(name)
		return calls > before
	})
	hangUp()
	v.Resume()
	t.exact(append(got, <-answers...), 30, "shared")
}

func withoutTime(t *T) {
	for _, text := range []string{"NOPERM this user has no permissions to run the 'time' command", "ERR unknown command 'TIME'"} {
		refusal := text // the servers of both rounds go on until the end of the test
		v := t.valkey()
		v.Handle("TIME", func(*fakevalkey.Server, []string) string { return fakevalkey.Error(refusal) })
		before := len(t.logged(v.Addr()))
		h := t.handler(t.name(), t.options(v))
		t.exact(rush(8, 20, func(int) answer { return t.ask(h, "key") }), 5, "shared")
		lines := t.logged(v.Addr())[before:]
		told := 0
		for _, line := range lines {
			if strings.Contains(line, "TIME") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("%q is logged so: %q", refusal, lines)
		}
	}
}

func database(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "valkey.db", "3"))
	if got := t.ask(h, "key"); got.decision != "shared" {
		t.Errorf("decided %s", got.decision)
	}
	selected := false
	for _, command := range v.Commands() {
		switch {
		case command.Args[0] == "SELECT" && command.Args[1] == "3":
			selected = true
		case strings.HasPrefix(command.Args[0], "EVAL") && !selected:
			t.Error("a script ran before the database was selected")
		}
	}
	if !selected {
		t.Error("the database was not selected")
	}
	if got := t.ask(t.handler(t.name(), t.options(v, "valkey.db", "999")), "key"); got.decision != "local" {
		t.Errorf("a database that is not there: decided %s", got.decision)
	}
	for _, command := range v.Commands() {
		if strings.HasPrefix(command.Args[0], "EVAL") && command.Conn > 0 {
			t.Error("a script ran although its database is not there")
		}
	}
}

func socket(t *T) {
	v := t.valkeyWith(fakevalkey.Config{Network: "unix", Address: filepath.Join(t.TempDir(), "s")})
	h := t.handler(t.name(), t.options(v, "valkey.endpoints", "unix://"+v.Addr()))
	if got := t.ask(h, "key"); got.decision != "shared" {
		t.Errorf("decided %s", got.decision)
	}
}

func logIn(t *T) {
	nobody := fakevalkey.Config{}
	password := fakevalkey.Config{Password: "right"}
	user := fakevalkey.Config{Users: map[string]string{"app": "right"}}
	userOnly := fakevalkey.Config{Users: map[string]string{"app": "right"}, DefaultOff: true}
	for _, tt := range []struct {
		server             string
		config             fakevalkey.Config
		username, password string
		want               string
	}{
		{"no password", nobody, "", "", "shared"},
		{"no password", nobody, "", "right", "local"},
		{"no password", nobody, "app", "right", "local"},
		{"requirepass", password, "", "", "local"},
		{"requirepass", password, "", "right", "shared"},
		{"requirepass", password, "default", "right", "shared"},
		{"requirepass", password, "app", "right", "local"},
		{"requirepass", password, "", "wrong", "local"},
		{"a further user", user, "", "", "shared"},
		{"a further user", user, "app", "right", "shared"},
		{"a further user", user, "app", "wrong", "local"},
		{"a further user alone", userOnly, "", "", "local"},
		{"a further user alone", userOnly, "", "right", "local"},
		{"a further user alone", userOnly, "app", "right", "shared"},
		{"a further user alone", userOnly, "app", "wrong", "local"},
	} {
		t.sub(fmt.Sprintf("%s, user %q, password %q", tt.server, tt.username, tt.password), func(t *T) {
			v := t.valkeyWith(tt.config)
			h := t.handler(t.name(), t.options(v, "valkey.username", tt.username, "valkey.password", tt.password))
			for i := 0; i < 4; i++ {
				if got := t.ask(h, "key"); got.decision != tt.want || got.status != http.StatusOK {
					t.Errorf("%d, %s, want %s", got.status, got.decision, tt.want)
				}
			}
			if lines := t.logged(v.Addr()); tt.want == "local" &&
				!anyContains(lines, "WRONGPASS") && !anyContains(lines, "NOAUTH") && !anyContains(lines, "ERR") {
				t.Errorf("the log does not say why: %q", lines)
			}
		})
	}
}

var oddPasswords = []string{
	"two words", " blanks around ", `@:/#[]%"'\`, "pässwörd✓", strings.Repeat("x", 200), "line\nend\r\n", "\x00\x01\xff", "$6\r\nfoobar",
}

func passwords(t *T) {
	for _, password := range oddPasswords {
		v := t.valkeyWith(fakevalkey.Config{Password: password})
		h := t.handler(t.name(), t.options(v, "valkey.password", password))
		if got := t.ask(h, "key"); got.decision != "shared" {
			t.Errorf("password %q: decided %s", password, got.decision)
		}
	}
}

func passwordsStaySecret(t *T) {
	const secret = "hunter2-8d21"
	for _, text := range []string{
		"ERR AUTH <password> called without any password configured for the default user.",
		"WRONGPASS invalid username-password pair or user is disabled.",
		"ERR unknown command 'AUTH', with args beginning with: '" + secret + "'",
		secret, "ERR-" + secret + " no",
	} {
		answer := text // the servers of all rounds go on until the end of the test
		v := t.valkey()
		v.Handle("AUTH", func(*fakevalkey.Server, []string) string { return fakevalkey.Error(answer) })
		for _, mode := range []string{"local", "closed"} {
			h := t.handler(t.name(), t.options(v, "valkey.password", secret, "onStoreFailure", mode))
			for i := 0; i < 8; i++ {
				if got := t.ask(h, "key"); got.decision != mode || strings.Contains(got.body, secret) {
					t.Errorf("%d, %s, %q", got.status, got.decision, got.body)
				}
			}
		}
	}
	if lines := t.logged(secret); len(lines) > 0 {
		t.Errorf("the password is in the log: %q", lines)
	}
}

func encrypted(t *T) {
	pki := NewAuthority(t.T)
	server := pki.Issue(t.T, "store.example", false)
	client := pki.Issue(t.T, "gateway", false)
	for _, tt := range []struct {
		name    string
		mutual  bool
		options []any
	}{
		{"by its authority", false, []any{"valkey.tls.ca", pki.PEM}},
		{"by another name", false, []any{"valkey.tls.ca", pki.PEM, "valkey.tls.serverName", "store.example"}},
		{"unverified", false, []any{"valkey.tls.insecureSkipVerify", "true"}},
		{"both ways", true, []any{"valkey.tls.ca", pki.PEM, "valkey.tls.cert", client.CertPEM, "valkey.tls.key", client.KeyPEM}},
	} {
		t.sub(tt.name, func(t *T) {
			config := &tls.Config{Certificates: []tls.Certificate{server.Pair}}
			if tt.mutual {
				config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, pki.Pool
			}
			v := t.valkeyWith(fakevalkey.Config{TLS: config, Password: "p"})
			h := t.handler(t.name(), t.options(v, append(tt.options, "valkey.password", "p")...))
			t.exact(rush(8, 20, func(int) answer { return t.ask(h, "key") }), 5, "shared")
		})
	}
}

func certificates(t *T) {
	pki, other := NewAuthority(t.T), NewAuthority(t.T)
	good := pki.Issue(t.T, "store.example", false)
	for _, tt := range []struct {
		name    string
		config  *tls.Config
		options []any
	}{
		{"of an unknown authority", &tls.Config{Certificates: []tls.Certificate{other.Issue(t.T, "x", false).Pair}}, []any{"valkey.tls.ca", pki.PEM}},
		{"of none that the system knows", &tls.Config{Certificates: []tls.Certificate{good.Pair}}, []any{"valkey.tls", map[string]any{}}},
		{"expired", &tls.Config{Certificates: []tls.Certificate{pki.Issue(t.T, "x", true).Pair}}, []any{"valkey.tls.ca", pki.PEM}},
		{"for another name", &tls.Config{Certificates: []tls.Certificate{good.Pair}}, []any{"valkey.tls.ca", pki.PEM, "valkey.tls.serverName", "other.example"}},
		{"missing on our side", &tls.Config{Certificates: []tls.Certificate{good.Pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pki.Pool},
			[]any{"valkey.tls.ca", pki.PEM}},
	} {
		t.sub(tt.name, func(t *T) {
			v := t.valkeyWith(fakevalkey.Config{TLS: tt.config})
			h := t.handler(t.name(), t.options(v, tt.options...))
			for i := 0; i < 5; i++ {
				if got := t.ask(h, "key"); got.decision != "local" || got.status != http.StatusOK {
					t.Errorf("%d, %s", got.status, got.decision)
				}
			}
			if commands := v.Commands(); len(commands) > 0 {
				t.Errorf("the server was told %q", commands)
			}
			if lines := t.logged(v.Addr()); !anyContains(lines, "tls") && !anyContains(lines, "certificate") {
				t.Errorf("the log does not say why: %q", lines)
			}
		})
	}
}

func encryptionMismatch(t *T) {
	pki := NewAuthority(t.T)
	server := &tls.Config{Certificates: []tls.Certificate{pki.Issue(t.T, "x", false).Pair}}
	for _, tt := range []struct {
		name    string
		config  fakevalkey.Config
		options []any
	}{
		// To the plain server a handshake is bytes that are no command.
		{"TLS to plain text", fakevalkey.Config{Report: func(string, ...interface{}) {}}, []any{"valkey.tls.ca", pki.PEM}},
		{"plain text to TLS", fakevalkey.Config{TLS: server}, nil},
	} {
		t.sub(tt.name, func(t *T) {
			v := t.valkeyWith(tt.config)
			h := t.handler(t.name(), impatient(t.options(v, tt.options...)))
			for i := 0; i < 5; i++ {
				if got := t.ask(h, "key"); got.decision != "local" || got.status != http.StatusOK {
					t.Errorf("%d, %s", got.status, got.decision)
				}
			}
		})
	}
}

func storesApart(t *T) {
	v := t.valkeyWith(fakevalkey.Config{Users: map[string]string{"app": "right"}})
	base := t.options(v)
	accepted := 0
	for _, options := range []map[string]any{
		base,
		with(base, "valkey.db", "1"),
		with(base, "valkey.timeout", "9s"),
		with(base, "valkey.dialTimeout", "9s"),
		with(base, "valkey.username", "app", "valkey.password", "right"),
	} {
		for i := 0; i < 2; i++ {
			if got := t.ask(t.handler(t.name(), options), "key"); got.decision != "shared" {
				t.Errorf("%v: decided %s", options, got.decision)
			}
		}
		accepted++
		if v.Accepted() != accepted {
			t.Errorf("%v: %d connections, want %d", options, v.Accepted(), accepted)
		}
	}
	// One whose password has become wrong does not use the connections of the others.
	if got := t.ask(t.handler(t.name(), with(base, "valkey.username", "app", "valkey.password", "wrong")), "key"); got.decision != "local" {
		t.Errorf("with a wrong password: decided %s", got.decision)
	}
	if got := t.ask(t.handler(t.name(), with(base, "valkey.username", "app", "valkey.password", "right")), "key"); got.decision != "shared" {
		t.Errorf("with the right password after that: decided %s", got.decision)
	}
}
