package lab

import (
	"bytes"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Faults are what a Proxy does to the traffic. They apply to what passes after
// they were set, on open connections too.
type Faults struct {
	Delay        time.Duration // how long each chunk from the server waits
	Slice        bool          // pass one byte a write, each with a short pause
	SliceReplies bool          // the same, but only what the server sends
	LoseRequests bool          // throw away what the client sends
	LoseReplies  bool          // throw away what the server sends
	HalveReplies bool          // pass half of what the server sends, then close the connection
	Hold         bool          // accept connections and do nothing with them
	Refuse       bool          // reset connections as soon as they are accepted

	// CutAfter, when not empty, resets a connection once a chunk that holds
	// these bytes has been passed to the server, before any reply to it comes
	// back.
	CutAfter []byte
}

// Proxy is a TCP proxy in front of a server, which can spoil the connection.
type Proxy struct {
	t        testing.TB
	addr     string
	target   atomic.Pointer[string]
	faults   atomic.Pointer[Faults]
	accepted atomic.Int64
	passing  atomic.Int64
	cuts     atomic.Int64

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]struct{}
}

// NewProxy starts a proxy without faults in front of a TCP address.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, open: make(map[net.Conn]struct{})}
	p.target.Store(&target)
	p.faults.Store(new(Faults))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	p.serve(l)
	t.Cleanup(func() {
		p.Close()
		p.Cut()
	})
	return p
}

// Addr returns the address to connect to.
func (p *Proxy) Addr() string { return p.addr }

// Port returns the port to connect to.
func (p *Proxy) Port() int {
	p.t.Helper()
	_, text, err := net.SplitHostPort(p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return port
}

// Set changes the faults.
func (p *Proxy) Set(f Faults) { p.faults.Store(&f) }

// Redirect leads connections that are made from now on to another TCP address.
func (p *Proxy) Redirect(target string) { p.target.Store(&target) }

// Accepted returns how many connections were made so far.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Connections returns how many clients are connected.
func (p *Proxy) Connections() int { return int(p.passing.Load()) }

// Cuts returns how many connections CutAfter has reset so far.
func (p *Proxy) Cuts() int { return int(p.cuts.Load()) }

// Cut resets all open connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		reset(conn)
	}
}

// Close stops listening: the kernel refuses new connections. Open ones stay.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Open listens again on the same address.
func (p *Proxy) Open() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.serve(l)
}

func (p *Proxy) serve(l net.Listener) {
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			p.passing.Add(1)
			go p.pass(conn)
		}
	}()
}

// reset closes a connection with RST, as a peer that vanished would.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (p *Proxy) track(conn net.Conn) {
	p.mu.Lock()
	p.open[conn] = struct{}{}
	p.mu.Unlock()
}

func (p *Proxy) forget(conn net.Conn) {
	p.mu.Lock()
	delete(p.open, conn)
	p.mu.Unlock()
	_ = conn.Close()
}

func (p *Proxy) pass(client net.Conn) {
	defer p.passing.Add(-1)
	p.track(client)
	defer p.forget(client)
	switch f := p.faults.Load(); {
	case f.Refuse:
		reset(client)
		return
	case f.Hold:
		// Reading goes on, so that the client notices nothing and a cut ends it.
		buffer := make([]byte, 4096)
		for {
			if _, err := client.Read(buffer); err != nil {
				return
			}
		}
	}
	server, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		reset(client)
		return
	}
	p.track(server)
	defer p.forget(server)
	done := make(chan struct{}, 2)
	go func() {
		p.copy(server, client, true)
		done <- struct{}{}
	}()
	go func() {
		p.copy(client, server, false)
		done <- struct{}{}
	}()
	<-done
}

func (p *Proxy) copy(to, from net.Conn, fromClient bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		chunk := buffer[:n]
		f := p.faults.Load()
		if fromClient && f.LoseRequests || !fromClient && f.LoseReplies {
			continue
		}
		if !fromClient && f.Delay > 0 {
			time.Sleep(f.Delay)
		}
		slice := f.Slice || f.SliceReplies && !fromClient
		if !fromClient && f.HalveReplies {
			_ = write(to, chunk[:n/2], slice)
			return
		}
		cut := fromClient && len(f.CutAfter) > 0 && bytes.Contains(chunk, f.CutAfter)
		if cut {
			// Counted before anybody can see it; and the client's side goes first, so
			// that no reply can slip through.
			p.cuts.Add(1)
			reset(from)
		}
		if err := write(to, chunk, slice); err != nil || cut {
			return
		}
	}
}

func write(to net.Conn, chunk []byte, slice bool) error {
	if !slice {
		_, err := to.Write(chunk)
		return err
	}
	for i := range chunk {
		if _, err := to.Write(chunk[i : i+1]); err != nil {
			return err
		}
		time.Sleep(50 * time.Microsecond)
	}
	return nil
}

// Blackhole returns an address whose host does not answer at all: connecting to
// it takes until the client gives up.
func Blackhole(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}).String()
	// Nobody accepts: once the queue is full the kernel drops what arrives.
	for range 8 {
		conn, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("the queue of a socket that accepts nothing does not fill up")
	return ""
}
