// Package fakevalkey is a server for tests that speaks enough of Valkey's protocol
// to count with scripts, and misbehaves as it is told.
//
// It listens on a real loopback address, so that what is tested is what runs. It
// reports every command that it does not know and every byte that is no command, so
// that no test passes by accident. A script is not interpreted: its meaning is a Go
// function, Count unless Register says otherwise.
package fakevalkey

import (
	"bufio"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Config says what kind of server it is. Its zero value is a server on a free port
// of 127.0.0.1 that demands no password.
type Config struct {
	// Network and Address are those of net.Listen; by default "tcp" and
	// "127.0.0.1:0".
	Network, Address string
	// TLS makes it a server that speaks TLS only.
	TLS *tls.Config
	// Password is that of the default user, as requirepass sets it.
	Password string
	// Users has the passwords of further users.
	Users map[string]string
	// DefaultOff switches the default user off, so that a user name is needed.
	DefaultOff bool
	// Databases is the number of databases; 16 if it is 0.
	Databases int
	// Report is called with each thing that no test expects. Nil means panic.
	Report func(format string, args ...interface{})
}

// Behaviour is how one connection misbehaves. Its zero value behaves.
type Behaviour struct {
	// Greeting is sent as soon as the connection is accepted.
	Greeting string
	// Swallow reads everything, understands nothing, and never answers.
	Swallow bool
	// Answers are sent instead of the server's own, one for each command in turn.
	// An empty one sends nothing. When they are used up the server behaves again.
	Answers []string
	// Extra is sent behind each answer.
	Extra string
	// Fragment writes single bytes, each with a Write of its own.
	Fragment bool
	// Delay passes before each answer.
	Delay time.Duration
	// CloseAfter closes the connection when so many bytes of answers were sent. -1
	// closes it in place of the first answer. 0 never does.
	CloseAfter int
	// Before is called with each command before it is carried out. It may block.
	Before func(command []string)
}

// Handler is what a script or a command does. It returns the bytes of the answer:
// see Int, Error, Bulk, Array, OK and Null. It is called under the server's lock,
// one call at a time, as Valkey does it.
type Handler func(s *Server, command []string) string

// Command is one command as it was received.
type Command struct {
	// Conn is the number of the connection in the order of acceptance, from 0.
	Conn int
	// Args has the command's name in upper case, and its arguments.
	Args []string
}

type entry struct {
	count   int64
	expires time.Time // zero: never
}

// Server is a running fake. All its methods may be called at any time and from any
// goroutine, except from inside a Handler.
type Server struct {
	config Config

	mu         sync.Mutex
	listener   net.Listener
	address    string
	conns      map[net.Conn]bool
	running    sync.WaitGroup
	accepted   int
	behaviours []Behaviour
	usual      Behaviour
	commands   []Command
	handlers   map[string]Handler // by command name
	meanings   map[string]Handler // by script digest
	loaded     map[string]bool    // script cache, by digest
	data       map[string]entry
	offset     time.Duration
	frozen     time.Time // zero: the clock runs
	refusal    string
	paused     chan struct{} // nil, or closed by Resume
}

// Start runs a server until the end of the test, which fails on everything that is
// reported.
func Start(t testing.TB, config Config) *Server {
	t.Helper()
	if config.Report == nil {
		config.Report = t.Errorf
	}
	s, err := New(config)
	if err != nil {
		t.Fatalf("starting the fake server: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// New runs a server until Stop.
func New(config Config) (*Server, error) {
	if config.Network == "" {
		config.Network = "tcp"
	}
	if config.Address == "" && config.Network == "tcp" {
		config.Address = "127.0.0.1:0"
	}
	if config.Databases == 0 {
		config.Databases = 16
	}
	if config.Report == nil {
		config.Report = func(format string, args ...interface{}) { panic(fmt.Sprintf(format, args...)) }
	}
	s := &Server{
		config:   config,
		conns:    map[net.Conn]bool{},
		handlers: map[string]Handler{},
		meanings: map[string]Handler{},
		loaded:   map[string]bool{},
		data:     map[string]entry{},
	}
	return s, s.listen(config.Address)
}

func (s *Server) listen(address string) error {
	listener, err := net.Listen(s.config.Network, address)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.listener = listener
	s.address = listener.Addr().String()
	s.mu.Unlock()
	s.running.Add(1)
	go s.accept(listener)
	return nil
}

// Addr returns the address to dial, host:port or a path. It stays the same over
// Stop and Restart.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// Stop closes the listener and all connections, and returns when all is quiet. What
// was counted is kept.
func (s *Server) Stop() {
	s.mu.Lock()
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.Resume()
	s.running.Wait()
}

// Restart stops the server and starts it again at the same address. As with a
// server that saves its data, what was counted is kept, and the script cache is
// empty. Call Flush for one that does not.
func (s *Server) Restart() error {
	s.Stop()
	s.FlushScripts()
	return s.listen(s.Addr())
}

// CloseConnections closes all connections and goes on listening.
func (s *Server) CloseConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// Flush forgets all that was counted.
func (s *Server) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = map[string]entry{}
}

// FlushScripts empties the script cache.
func (s *Server) FlushScripts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = map[string]bool{}
}

// Pause lets the server read commands and answer none, until Resume.
func (s *Server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == nil {
		s.paused = make(chan struct{})
	}
}

// Resume ends Pause: all that was held up is carried out and answered.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused != nil {
		close(s.paused)
		s.paused = nil
	}
}

// Refuse answers every script call with the error line given, such as
// "READONLY You can't write against a read only replica.". Empty ends it.
func (s *Server) Refuse(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = line
}

// Behave sets the behaviour of the connections accepted from now on: one each, in
// order. Those after them behave as Usually says.
func (s *Server) Behave(each ...Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behaviours = each
}

// Usually sets the behaviour of all connections accepted from now on for which
// Behave has none.
func (s *Server) Usually(b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usual = b
}

// Handle teaches the server a command, or another meaning of one that it knows.
func (s *Server) Handle(name string, h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[strings.ToUpper(name)] = h
}

// Register gives the script with this body a meaning other than Count. The command
// that the handler gets begins at the key: KEYS[1], ARGV[1], ARGV[2] and so on.
func (s *Server) Register(body string, h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meanings[digest(body)] = h
}

// SetTime stops the server's clock at t, until Advance or another SetTime moves it.
func (s *Server) SetTime(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = t
}

// Advance moves the server's clock, forward or back.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen.IsZero() {
		s.offset += d
		return
	}
	s.frozen = s.frozen.Add(d)
}

// Now returns the server's time.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

// now is Now for those who hold the lock.
func (s *Server) now() time.Time {
	if s.frozen.IsZero() {
		return time.Now().Add(s.offset)
	}
	return s.frozen
}

// Count returns the count under key, 0 if there is none or it has expired.
func (s *Server) Count(key string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live(key).count
}

// SetCount sets the count under key. It never expires if ttl is 0.
func (s *Server) SetCount(key string, n int64, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := entry{count: n}
	if ttl > 0 {
		e.expires = s.now().Add(ttl)
	}
	s.data[key] = e
}

// TTL returns how long the count under key has to live; 0 if it never expires or
// does not exist.
func (s *Server) TTL(key string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.live(key)
	if e.expires.IsZero() {
		return 0
	}
	return e.expires.Sub(s.now())
}

// Keys returns the keys that have not expired, sorted.
func (s *Server) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key, e := range s.data {
		if e.expires.IsZero() || e.expires.After(s.now()) {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	return keys
}

// live returns the entry under key and removes it if it has expired. The caller
// holds the lock.
func (s *Server) live(key string) entry {
	e, found := s.data[key]
	if found && !e.expires.IsZero() && !e.expires.After(s.now()) {
		delete(s.data, key)
		return entry{}
	}
	return e
}

// Commands returns the commands received so far, in order.
func (s *Server) Commands() []Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Command(nil), s.commands...)
}

// ForgetCommands empties the record of commands.
func (s *Server) ForgetCommands() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands = nil
}

// Accepted returns the number of connections accepted so far.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Open returns the number of connections that are open now.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) accept(listener net.Listener) {
	defer s.running.Done()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.listener != listener {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		number := s.accepted
		s.accepted++
		s.conns[conn] = true
		behaviour := s.usual
		if len(s.behaviours) > 0 {
			behaviour = s.behaviours[0]
			s.behaviours = s.behaviours[1:]
		}
		s.running.Add(1)
		s.mu.Unlock()
		go s.serve(conn, number, behaviour)
	}
}

func (s *Server) serve(raw net.Conn, number int, behaviour Behaviour) {
	defer s.running.Done()
	defer func() {
		_ = raw.Close()
		s.mu.Lock()
		delete(s.conns, raw)
		s.mu.Unlock()
	}()
	session := &session{server: s, number: number, behaviour: behaviour, conn: raw}
	if s.config.TLS != nil {
		secured := tls.Server(raw, s.config.TLS)
		if err := secured.Handshake(); err != nil {
			return
		}
		session.conn = secured
	}
	session.run()
}

// session is the server's side of one connection.
type session struct {
	server    *Server
	number    int
	behaviour Behaviour
	conn      net.Conn
	sent      int // bytes of answers
	answered  int // commands
	trusted   bool
}

func (c *session) run() {
	if c.behaviour.Greeting != "" && !c.send(c.behaviour.Greeting) {
		return
	}
	if c.behaviour.Swallow {
		_, _ = io.Copy(io.Discard, c.conn)
		return
	}
	in := bufio.NewReader(c.conn)
	for {
		command, err := readCommand(in)
		if err != nil {
			if _, broken := err.(malformed); broken {
				c.server.config.Report("fakevalkey: connection %d: %v", c.number, err)
			}
			return
		}
		if !c.obey(command) {
			return
		}
	}
}

// obey carries out one command, and tells whether the connection goes on.
func (c *session) obey(command []string) bool {
	s := c.server
	command[0] = strings.ToUpper(command[0])
	s.mu.Lock()
	s.commands = append(s.commands, Command{Conn: c.number, Args: append([]string(nil), command...)})
	paused := s.paused
	s.mu.Unlock()
	if c.behaviour.Before != nil {
		c.behaviour.Before(command)
	}
	if paused != nil {
		<-paused
	}
	var answer string
	if c.answered < len(c.behaviour.Answers) {
		answer = c.behaviour.Answers[c.answered]
	} else {
		answer = c.execute(command)
	}
	c.answered++
	if c.behaviour.Delay > 0 {
		time.Sleep(c.behaviour.Delay)
	}
	if c.behaviour.CloseAfter < 0 {
		return false
	}
	return c.send(answer + c.behaviour.Extra)
}

// send writes an answer as the behaviour wants it, and tells whether the connection
// goes on.
func (c *session) send(answer string) bool {
	last := false
	if limit := c.behaviour.CloseAfter; limit > 0 && c.sent+len(answer) >= limit {
		answer, last = answer[:limit-c.sent], true
	}
	c.sent += len(answer)
	step := len(answer)
	if c.behaviour.Fragment {
		step = 1
	}
	for len(answer) > 0 {
		if _, err := c.conn.Write([]byte(answer[:step])); err != nil {
			return false
		}
		answer = answer[step:]
	}
	return !last
}

// execute returns the answer to one command.
func (c *session) execute(command []string) string {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	name := command[0]
	if name == "AUTH" {
		return c.auth(command)
	}
	if !c.trusted && (s.config.Password != "" || s.config.DefaultOff) {
		return Error("NOAUTH Authentication required.")
	}
	if h := s.handlers[name]; h != nil {
		return h(s, command)
	}
	switch name {
	case "PING":
		return "+PONG\r\n"
	case "SELECT":
		if len(command) != 2 {
			return Error("ERR wrong number of arguments for 'select' command")
		}
		if n, err := strconv.Atoi(command[1]); err != nil || n < 0 || n >= s.config.Databases {
			return Error("ERR DB index is out of range")
		}
		return OK
	case "TIME":
		now := s.now()
		return Array(Bulk(strconv.FormatInt(now.Unix(), 10)), Bulk(strconv.Itoa(now.Nanosecond()/1000)))
	case "EVALSHA":
		if len(command) < 3 {
			return Error("ERR wrong number of arguments for 'evalsha' command")
		}
		if !s.loaded[command[1]] {
			return Error("NOSCRIPT No matching script. Please use EVAL.")
		}
		return s.script(command[1], command)
	case "EVAL":
		if len(command) < 3 {
			return Error("ERR wrong number of arguments for 'eval' command")
		}
		sha := digest(command[1])
		s.loaded[sha] = true
		return s.script(sha, command)
	}
	s.config.Report("fakevalkey: connection %d sent an unknown command: %q", c.number, command)
	return Error("ERR unknown command '" + name + "', with args beginning with: '" + strings.Join(command[1:], "' '") + "' ")
}

// auth answers AUTH as Valkey does.
func (c *session) auth(command []string) string {
	config := c.server.config
	name := "default"
	switch len(command) {
	case 2:
		if config.Password == "" && !config.DefaultOff {
			return Error("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
		}
	case 3:
		name = command[1]
	default:
		return Error("ERR wrong number of arguments for 'auth' command")
	}
	password := command[len(command)-1]
	want, known := config.Users[name]
	if name == "default" {
		want, known = config.Password, !config.DefaultOff
		if known && want == "" {
			want = password // a user without password takes any
		}
	}
	if !known || want != password {
		return Error("WRONGPASS invalid username-password pair or user is disabled.")
	}
	c.trusted = true
	return OK
}

// script carries out a script: one with a meaning of its own, or one with one key. The
// caller holds the lock.
func (s *Server) script(sha string, command []string) string {
	if s.refusal != "" {
		return Error(s.refusal)
	}
	h := s.meanings[sha]
	keys, err := strconv.Atoi(command[2])
	if err != nil || keys < 1 || len(command) < 3+keys || h == nil && keys != 1 {
		s.config.Report("fakevalkey: a script without its keys: %q", command)
		return Error("ERR Number of keys can't be greater than number of args")
	}
	if h != nil {
		return h(s, command[3:])
	}
	return Count(s, command[3:])
}

// Count is the meaning of a script unless it is given another: ARGV[1] is added to
// the count under KEYS[1], which expires ARGV[2] seconds after it began; the answer
// is the count. A count without expiry gets one.
func Count(s *Server, args []string) string {
	if len(args) != 3 {
		s.config.Report("fakevalkey: a counting script takes a key, a number and seconds, not %q", args)
		return Error("ERR wrong number of arguments")
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	seconds, err2 := strconv.ParseInt(args[2], 10, 64)
	if err != nil || err2 != nil || seconds < 1 {
		s.config.Report("fakevalkey: a counting script takes a key, a number and seconds, not %q", args)
		return Error("ERR value is not an integer or out of range")
	}
	e := s.live(args[0])
	e.count += n
	if e.expires.IsZero() {
		e.expires = s.now().Add(time.Duration(seconds) * time.Second)
	}
	s.data[args[0]] = e
	return Int(e.count)
}

// OK and Null are complete answers.
const (
	OK   = "+OK\r\n"
	Null = "$-1\r\n"
)

// Int encodes an integer.
func Int(n int64) string { return ":" + strconv.FormatInt(n, 10) + "\r\n" }

// Error encodes an error line, given without its '-'.
func Error(line string) string { return "-" + line + "\r\n" }

// Bulk encodes a bulk string.
func Bulk(text string) string { return "$" + strconv.Itoa(len(text)) + "\r\n" + text + "\r\n" }

// Array encodes an array of elements that are encoded already.
func Array(elements ...string) string {
	return "*" + strconv.Itoa(len(elements)) + "\r\n" + strings.Join(elements, "")
}

func digest(body string) string {
	sum := sha1.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

// malformed is the error for bytes that are no command.
type malformed string

func (m malformed) Error() string { return string(m) }

// readCommand reads an array of bulk strings. Its error is malformed, or the
// reader's.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readHeader(in, '*')
	if err != nil {
		return nil, err
	}
	if n < 1 || n > 1<<20 {
		return nil, malformed(fmt.Sprintf("a command of %d parts", n))
	}
	command := make([]string, n)
	for i := range command {
		size, err := readHeader(in, '$')
		if err != nil {
			return nil, err
		}
		if size < 0 || size > 64<<20 {
			return nil, malformed(fmt.Sprintf("a part of %d bytes", size))
		}
		data := make([]byte, size+2)
		if _, err := io.ReadFull(in, data); err != nil {
			return nil, err
		}
		if string(data[size:]) != "\r\n" {
			return nil, malformed("a part without its end")
		}
		command[i] = string(data[:size])
	}
	return command, nil
}

func readHeader(in *bufio.Reader, kind byte) (int, error) {
	first, err := in.ReadByte()
	if err != nil {
		return 0, err
	}
	if first != kind {
		return 0, malformed(fmt.Sprintf("%q where %q belongs", first, kind))
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(line, "\r\n"))
	if err != nil {
		return 0, malformed(fmt.Sprintf("a length that is none: %q", line))
	}
	return n, nil
}
