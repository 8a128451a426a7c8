package resp

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// wire is a connection that records what is written and answers from a text.
type wire struct {
	net.Conn
	in     io.Reader
	out    bytes.Buffer
	writes int
	sets   int
	peeks  int   // deadlines for reading alone
	deaf   error // what setting one of these comes to
	most   int   // so many writes succeed; 0: all
	fails  error // of the others
}

func (w *wire) Read(b []byte) (int, error) { return w.in.Read(b) }

func (w *wire) Write(b []byte) (int, error) {
	w.writes++
	if w.most > 0 && w.writes > w.most {
		return 0, w.fails
	}
	return w.out.Write(b)
}

func (w *wire) SetDeadline(time.Time) error {
	w.sets++
	return nil
}

func (w *wire) SetReadDeadline(time.Time) error {
	w.peeks++
	return w.deaf
}

func (w *wire) Close() error { return nil }

// connOn returns a connection whose server answers with the given bytes.
func connOn(answers string) (*Conn, *wire) {
	w := &wire{in: strings.NewReader(answers)}
	return &Conn{net: w, raw: w, in: bufio.NewReaderSize(w, maxLine), Usable: true}, w
}

// soon is a deadline that a working test never reaches.
func soon() time.Time { return time.Now().Add(30 * time.Second) }

// optionsFor returns options for the fake server.
func optionsFor(s *fakevalkey.Server) *Options {
	return &Options{Network: "tcp", Address: s.Addr(), DialTimeout: 30 * time.Second}
}

// dial opens a connection within o.DialTimeout.
func dial(o *Options) (*Conn, error) {
	return dialUntil(o, time.Now().Add(o.DialTimeout))
}

func TestEncodeToTheByte(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"PING"}, "*1\r\n$4\r\nPING\r\n"},
		{[]string{"AUTH", ""}, "*2\r\n$4\r\nAUTH\r\n$0\r\n\r\n"},
		{[]string{"AUTH", "é\r\n$3\x00"}, "*2\r\n$4\r\nAUTH\r\n$7\r\né\r\n$3\x00\r\n"},
		{[]string{"SELECT", "15"}, "*2\r\n$6\r\nSELECT\r\n$2\r\n15\r\n"},
		{[]string{"A", strings.Repeat("k", 100000)}, "*2\r\n$1\r\nA\r\n$100000\r\n" + strings.Repeat("k", 100000) + "\r\n"},
		{[]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}, "*10\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n$1\r\n5\r\n$1\r\n6\r\n$1\r\n7\r\n$1\r\n8\r\n$1\r\n9\r\n$2\r\n10\r\n"},
	} {
		if got := encode(test.args); got != test.want {
			t.Errorf("%q encodes to %q, want %q", test.args, got, test.want)
		}
	}
}

func TestDoReturnsEveryKindOfReply(t *testing.T) {
	for _, test := range wellFormed {
		c, w := connOn(test.wire)
		if _, err := Do(c, soon(), "PING"); err != nil {
			t.Errorf("%q: %v", test.wire, err)
		}
		if w.writes != 1 || w.sets != 1 || w.out.String() != "*1\r\n$4\r\nPING\r\n" {
			t.Errorf("%d writes, %d deadlines, %q written", w.writes, w.sets, w.out.String())
		}
		if !c.Usable {
			t.Errorf("%q: not reusable", test.wire)
		}
	}
}

func TestNothingIsSentAfterAnError(t *testing.T) {
	for _, answer := range []string{"", ":1", "x\r\n", "$3\r\nab"} {
		c, w := connOn(answer)
		if reply, err := Do(c, soon(), "PING"); err == nil {
			t.Errorf("%q: got %+v", answer, reply)
		}
		if c.Usable {
			t.Errorf("%q: reusable", answer)
		}
		_, err := Do(c, soon(), "PING")
		demand(t, err, ErrLost)
		_, _, err = add(c, soon(), "k")
		demand(t, err, ErrLost)
		if w.writes != 1 {
			t.Errorf("%q: %d writes", answer, w.writes)
		}
	}
}

func TestReuseByTheLastAnswer(t *testing.T) {
	for _, test := range []struct {
		answer string
		want   bool
	}{
		{"+OK\r\n", true},
		{"-ERR Error running script\r\n", true},
		{"-NOPERM this user has no permissions\r\n", true},
		{"-OOM command not allowed\r\n", true},
		{"-BUSY Valkey is busy running a script.\r\n", true},
		{"-FOO bar\r\n", true},
		{"-READONLYISH no such word\r\n", true},
		{"-ERR READONLY is not the first word\r\n", true},
		{"-READONLY You can't write against a read only replica.\r\n", false},
		{"-LOADING Redis is loading the dataset in memory\r\n", false},
		{"-LOADING Valkey is loading the dataset in memory\r\n", false},
		{"-MASTERDOWN Link with MASTER is down\r\n", false},
		{"+READONLY\r\n", true},
		{"+OK\r\n+OK\r\n", false},
		{":1\r\n:2\r\n", false},
		{":1\r\n\x00", false},
	} {
		c, _ := connOn(test.answer)
		if _, err := Do(c, soon(), "PING"); err != nil {
			t.Errorf("%q: %v", test.answer, err)
		}
		if got := c.Usable; got != test.want {
			t.Errorf("%q: reusable after Do is %v", test.answer, got)
		}
		if test.answer[0] == '+' {
			continue
		}
		c, _ = connOn(test.answer)
		if _, _, err := add(c, soon(), "k"); err != nil {
			t.Errorf("%q: %v", test.answer, err)
		}
		if got := c.Usable; got != test.want {
			t.Errorf("%q: reusable after Eval is %v", test.answer, got)
		}
	}
}

func TestAlive(t *testing.T) {
	quiet := fmt.Errorf("read: %w", os.ErrDeadlineExceeded)
	for _, test := range []struct {
		name   string
		in     *stepwise
		before string // what was read already and is not used
		deaf   error
		used   bool
		want   bool
	}{
		{name: "silent", in: &stepwise{end: quiet}, want: true},
		{name: "closed by the server", in: &stepwise{}},
		{name: "reset by the server", in: &stepwise{end: io.ErrClosedPipe}},
		{name: "an answer that nobody asked for", in: &stepwise{parts: []string{":1\r\n"}, end: quiet}},
		{name: "a byte that nobody asked for", in: &stepwise{parts: []string{"\n"}, end: quiet}},
		{name: "a byte that came with the last answer", in: &stepwise{end: quiet}, before: ":"},
		{name: "no deadline can be set", in: &stepwise{end: quiet}, deaf: net.ErrClosed},
		{name: "used up", in: &stepwise{end: quiet}, used: true},
	} {
		c, w := connOn(test.before)
		if test.before != "" {
			if _, err := c.in.Peek(len(test.before)); err != nil {
				t.Fatal(err)
			}
		}
		w.in, w.deaf, c.Usable = test.in, test.deaf, !test.used
		// Asked twice it says the same: nothing is taken from what is there.
		for i := 1; i <= 2; i++ {
			if got := Alive(c); got != test.want {
				t.Errorf("%s: alive %v", test.name, got)
			}
		}
		if w.writes != 0 || test.used && w.peeks != 0 {
			t.Errorf("%s: %d writes, listened %d times", test.name, w.writes, w.peeks)
		}
	}
}

// A connection that was found alive is used as any other: the time that Alive listens
// for is not that of the next call.
func TestAliveLeavesTheConnectionAsItIs(t *testing.T) {
	cert, pool := certificate(t, time.Hour, "127.0.0.1")
	for _, secure := range []bool{false, true} {
		config := fakevalkey.Config{}
		if secure {
			config.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		}
		s := fakevalkey.Start(t, config)
		o := optionsFor(s)
		if secure {
			o.TLS = &tls.Config{RootCAs: pool}
		}
		c, err := dial(o)
		if err != nil {
			t.Fatal(err)
		}
		for i := int64(1); i <= 3; i++ {
			for looks := 0; looks < 2; looks++ {
				if !Alive(c) {
					t.Errorf("TLS %v: not alive after %d calls and %d looks", secure, i-1, looks)
				}
			}
			wantCount(t, c, "k", i)
		}
		s.CloseConnections()
		eventually(t, "the end of the connection is found out", func() bool { return !Alive(c) })
		closeConn(c)
		if Alive(c) {
			t.Errorf("TLS %v: alive after it was closed", secure)
		}
	}
}

func TestAliveFindsWhatNobodyAskedFor(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c, err := dial(&Options{Network: "tcp", Address: listener.Addr().String(), DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(c)
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if !Alive(c) {
		t.Error("not alive before anything was sent")
	}
	if _, err := io.WriteString(server, ":1\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is found out", func() bool { return !Alive(c) })
	if Alive(c) {
		t.Error("alive again")
	}
}

func TestAuthentication(t *testing.T) {
	awkward := " blank @:/#[]%\"' \\ \r\n " + strings.Repeat("é", 100) + "\n"
	type client struct{ user, password string }
	nothing, password, wrong := client{}, client{"", "secret"}, client{"", "other"}
	user, wrongUser, userOnly := client{"gate", "keeper"}, client{"gate", "other"}, client{"gate", ""}
	const works = "PONG"
	for _, server := range []struct {
		name   string
		config fakevalkey.Config
		want   map[client]string // PONG, the first word of the refusal, or NOAUTH where only PING fails
	}{
		{"no password", fakevalkey.Config{}, map[client]string{
			nothing: works, password: "ERR", wrong: "ERR", user: "WRONGPASS", wrongUser: "WRONGPASS", userOnly: "WRONGPASS",
			{"default", "any"}: works}},
		{"requirepass", fakevalkey.Config{Password: "secret"}, map[client]string{
			nothing: "NOAUTH", password: works, wrong: "WRONGPASS", user: "WRONGPASS", wrongUser: "WRONGPASS", userOnly: "WRONGPASS",
			{"default", "secret"}: works, {"default", "other"}: "WRONGPASS"}},
		{"user", fakevalkey.Config{Password: "secret", Users: map[string]string{"gate": "keeper"}}, map[client]string{
			nothing: "NOAUTH", password: works, wrong: "WRONGPASS", user: works, wrongUser: "WRONGPASS", userOnly: "WRONGPASS",
			{"Gate", "keeper"}: "WRONGPASS"}},
		{"default user off", fakevalkey.Config{DefaultOff: true, Users: map[string]string{"gate": "keeper"}}, map[client]string{
			nothing: "NOAUTH", password: "WRONGPASS", wrong: "WRONGPASS", user: works, wrongUser: "WRONGPASS", userOnly: "WRONGPASS",
			{"default", "any"}: "WRONGPASS"}},
		{"awkward password", fakevalkey.Config{Password: awkward, Users: map[string]string{"gäte @:": awkward}}, map[client]string{
			{"", awkward}: works, {"gäte @:", awkward}: works,
			{"", strings.TrimSpace(awkward)}: "WRONGPASS", {"", awkward[:len(awkward)-1]}: "WRONGPASS"}},
	} {
		for who, want := range server.want {
			s := fakevalkey.Start(t, server.config)
			o := optionsFor(s)
			o.Username, o.Password, o.DB = who.user, who.password, 0
			name := fmt.Sprintf("server with %s, user %q, password %q", server.name, who.user, who.password)
			c, err := dial(o)
			if want != works && want != "NOAUTH" {
				if err == nil {
					t.Errorf("%s: works", name)
					closeConn(c)
					continue
				}
				demand(t, err, ErrRefused)
				if !strings.HasSuffix(err.Error(), "AUTH answered with "+want) {
					t.Errorf("%s: %v, want %s", name, err, want)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			reply, err := Do(c, soon(), "PING")
			if err != nil || Word(reply.Text) != want {
				t.Errorf("%s: PING gives %+v, %v, want %s", name, reply, err, want)
			}
			closeConn(c)
		}
	}
}

func TestOpeningNeverShowsThePassword(t *testing.T) {
	for _, answer := range []string{
		"-ERR unknown command 'AUTH', with args beginning with: 'hunter2' \r\n",
		"-ERR AUTH hunter2\r\n",
		"-hunter2 is wrong\r\n",
		"-'hunter2'\r\n",
		"-hun ter2\r\n",
		"+hunter2\r\n",
		"$7\r\nhunter2\r\n",
		"*2\r\n$4\r\nAUTH\r\n$7\r\nhunter2\r\n",
		":hunter2\r\n",
		"hunter2\r\n",
		"$hunter2\r\n",
		"+hunter2",
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{})
		s.Usually(fakevalkey.Behaviour{Answers: []string{answer}, CloseAfter: len(answer)})
		o := optionsFor(s)
		o.Password = "hunter2"
		c, err := dial(o)
		if err == nil {
			t.Errorf("%q: connected", answer)
			closeConn(c)
			continue
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "hun") || strings.Contains(text, "ter2") {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

func TestOpeningReadsAndChecksEveryAnswer(t *testing.T) {
	for _, test := range []struct {
		name    string
		answers []string
		extra   string
		want    error
		sent    int // commands until the connection is given up
	}{
		{"good", []string{"+OK\r\n", "+OK\r\n"}, "", nil, 2},
		{"wrong password, good database", []string{"-WRONGPASS no\r\n", "+OK\r\n"}, "", ErrRefused, 1},
		{"good password, no database", []string{"+OK\r\n", "-ERR DB index is out of range\r\n"}, "", ErrRefused, 2},
		{"both answers at once", []string{"+OK\r\n+OK\r\n", ""}, "", ErrProtocol, 1},
		{"an answer too many", []string{"+OK\r\n", "+OK\r\n:1\r\n"}, "", ErrProtocol, 2},
		{"half an answer behind", []string{"+OK\r\n", "+OK\r\n-E"}, "", ErrProtocol, 2},
		{"another simple string", []string{"+QUEUED\r\n"}, "", ErrProtocol, 1},
		{"an integer", []string{":1\r\n"}, "", ErrProtocol, 1},
		{"null", []string{"$-1\r\n"}, "", ErrProtocol, 1},
		{"a bulk string", []string{"$2\r\nOK\r\n"}, "", ErrProtocol, 1},
		{"loading", []string{"-LOADING Valkey is loading the dataset in memory\r\n"}, "", ErrRefused, 1},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{Password: "secret"})
		s.Usually(fakevalkey.Behaviour{Answers: test.answers})
		o := optionsFor(s)
		o.Password, o.DB = "secret", 3
		c, err := dial(o)
		if test.want == nil {
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
				continue
			}
			closeConn(c)
		} else if err == nil {
			t.Errorf("%s: connected", test.name)
			closeConn(c)
		} else {
			demand(t, err, test.want)
		}
		if got := len(s.Commands()); got != test.sent {
			t.Errorf("%s: %d commands sent, want %d", test.name, got, test.sent)
		}
		eventually(t, "the connection is closed", func() bool { return s.Open() == 0 })
	}
}

func TestSelect(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	o := optionsFor(s)
	o.DB = 15
	c, err := dial(o)
	if err != nil {
		t.Fatal(err)
	}
	closeConn(c)
	o.DB = 999
	_, err = dial(o)
	demand(t, err, ErrRefused)
	if err == nil || !strings.Contains(err.Error(), "SELECT answered with ERR") {
		t.Errorf("database 999: %v", err)
	}
	var sent []string
	for _, command := range s.Commands() {
		sent = append(sent, strings.Join(command.Args, " "))
	}
	if got := strings.Join(sent, ", "); got != "SELECT 15, SELECT 999" {
		t.Errorf("sent %s", got)
	}
}

func TestDialUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := fakevalkey.Start(t, fakevalkey.Config{Network: "unix", Address: path, Password: "secret"})
	network, address, err := ParseEndpoint("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(&Options{Network: network, Address: address, Password: "secret", DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(c)
	if n, refusal, err := add(c, soon(), "k"); n != 1 || refusal != "" || err != nil {
		t.Errorf("got %d, %q, %v", n, refusal, err)
	}
	if s.Count("k") != 1 {
		t.Errorf("counted %d", s.Count("k"))
	}
}

func TestDialNothingThere(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Stop()
	_, err := dial(optionsFor(s))
	demand(t, err, ErrDial)
	if err == nil || isTimeout(err) {
		t.Errorf("a refused connect is no timeout: %v", err)
	}
	_, err = dial(&Options{Network: "tcp", Address: "no-such-host.invalid:6379", DialTimeout: 30 * time.Second})
	demand(t, err, ErrDial)
}

func TestDialTimeoutCoversEveryStep(t *testing.T) {
	silent := fakevalkey.Behaviour{Swallow: true}
	authThenSilent := fakevalkey.Behaviour{Answers: []string{"+OK\r\n", ""}}
	dripping := fakevalkey.Behaviour{Answers: []string{"+O"}}
	for _, test := range []struct {
		name      string
		behaviour fakevalkey.Behaviour
		secure    bool
	}{
		{"AUTH", silent, false},
		{"SELECT", authThenSilent, false},
		{"half an answer", dripping, false},
		{"TLS to a plain port", silent, true},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{})
		s.Usually(test.behaviour)
		o := optionsFor(s)
		o.Password, o.DB, o.DialTimeout = "secret", 2, 50*time.Millisecond
		if test.secure {
			o.TLS = &tls.Config{}
		}
		c, err := dial(o)
		if err == nil {
			t.Errorf("%s: connected", test.name)
			closeConn(c)
			continue
		}
		demand(t, err, ErrTimeout)
		eventually(t, "the connection is closed", func() bool { return s.Open() == 0 })
	}
	o := &Options{Network: "tcp", Address: "127.0.0.1:1", DialTimeout: -time.Second}
	_, err := dial(o)
	demand(t, err, ErrDial, ErrTimeout)
}

func TestDialHTTPServer(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	_, err := dial(&Options{Network: "tcp", Address: s.Listener.Addr().String(), Password: "hunter2", DialTimeout: 30 * time.Second})
	demand(t, err, ErrProtocol)
	if err == nil || !strings.Contains(err.Error(), "HTTP") {
		t.Errorf("got %v", err)
	}
}

// certificate makes one that signs itself, for the names and the life given.
func certificate(t *testing.T, life time.Duration, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fake"},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTLS(t *testing.T) {
	good, goodPool := certificate(t, time.Hour, "127.0.0.1", "valkey.test")
	expired, expiredPool := certificate(t, -time.Hour, "127.0.0.1")
	named, namedPool := certificate(t, time.Hour, "other.test")
	for _, test := range []struct {
		name   string
		server tls.Certificate
		client *tls.Config
		want   string // part of the error; empty: it works
	}{
		{"good", good, &tls.Config{RootCAs: goodPool}, ""},
		{"good, named", good, &tls.Config{RootCAs: goodPool, ServerName: "valkey.test"}, ""},
		{"not verified", named, &tls.Config{InsecureSkipVerify: true}, ""},
		{"self-signed", good, &tls.Config{}, "unknown authority"},
		{"expired", expired, &tls.Config{RootCAs: expiredPool}, "expired"},
		{"wrong address", named, &tls.Config{RootCAs: namedPool}, "127.0.0.1"},
		{"wrong name", named, &tls.Config{RootCAs: namedPool, ServerName: "valkey.test"}, "other.test, not valkey.test"},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{Password: "secret", TLS: &tls.Config{Certificates: []tls.Certificate{test.server}}})
		o := optionsFor(s)
		o.Password, o.TLS = "secret", test.client
		c, err := dial(o)
		if test.want != "" {
			demand(t, err, ErrDial)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want %q in it", test.name, err, test.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if n, refusal, err := add(c, soon(), "k"); n != 1 || refusal != "" || err != nil {
			t.Errorf("%s: got %d, %q, %v", test.name, n, refusal, err)
		}
		if test.client.ServerName == "" && o.TLS != test.client {
			t.Errorf("%s: the configuration was changed", test.name)
		}
		closeConn(c)
	}
}

func TestPlainToTLSPort(t *testing.T) {
	cert, _ := certificate(t, time.Hour, "127.0.0.1")
	s := fakevalkey.Start(t, fakevalkey.Config{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	o := optionsFor(s)
	o.Password = "hunter2"
	if c, err := dial(o); err == nil {
		t.Error("connected")
		closeConn(c)
	} else {
		demand(t, err, ErrLost)
	}
	// A server that says what is wrong, as OpenSSL does, is recognised by it.
	s = fakevalkey.Start(t, fakevalkey.Config{})
	s.Usually(fakevalkey.Behaviour{Answers: []string{"\x15\x03\x01\x00\x02\x02\x46\n"}})
	o = optionsFor(s)
	o.Password = "hunter2"
	_, err := dial(o)
	demand(t, err, ErrProtocol)
	if err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("got %v", err)
	}
}
