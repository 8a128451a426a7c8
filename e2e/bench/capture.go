package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A capture sees what passes between a store on this machine and all who talk to
// it, with the time at which the kernel passed it on. Whoever is watched does not
// notice, other than by a proxy, and no stamp waits for a processor.
type capture struct {
	port  uint16
	fd    int
	flows map[uint16]*flow // by the client's port; for exchanges alone

	mu      sync.Mutex
	packets []packet
	err     error
}

// packet is one that carries data or opens a connection.
type packet struct {
	at        int64 // unix nanoseconds
	client    uint16
	fromStore bool
	opens     bool // the connection, and carries nothing yet
	sequence  uint32
	payload   []byte
}

// flow is one connection, both ways.
type flow struct{ commands, replies half }

// half is one direction of a connection.
type half struct {
	next     uint32 // the sequence number of what comes next
	open     bool   // next is known
	text     []byte // what no message was made of yet
	marks    []mark // of text
	messages []message
}

// mark says that the text up to an end had come at a time.
type mark struct {
	end int
	at  int64
}

// message is one command or reply of the protocol.
type message struct {
	text        []byte
	first, last int64 // when its first and its last byte came
}

// exchange is one call of a script that counts, and its answer.
type exchange struct {
	key            string
	count          int64 // that it answered
	sent, answered int64 // unix nanoseconds
}

// startCapture begins to look at a store's port on loopback. It takes the right to
// open raw sockets.
func startCapture(t testing.TB, port int) *capture {
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	ip := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, syscall.ETH_P_IP)) // in the network's order
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, int(ip))
	if err != nil {
		t.Fatalf("opening a raw socket, which needs root: %v", err)
	}
	c := &capture{port: uint16(port), fd: fd, flows: map[uint16]*flow{}}
	for _, err := range []error{
		syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: ip, Ifindex: loopback.Index}),
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1),
		// All of a measurement fits, so that the reader may be late.
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 256<<20),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 100_000}),
	} {
		if err != nil {
			_ = syscall.Close(fd)
			t.Fatalf("setting up a raw socket: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = syscall.Close(fd)
	})
	return c
}

func (c *capture) read(ctx context.Context) {
	buffer, control := make([]byte, 1<<17), make([]byte, 128)
	for ctx.Err() == nil {
		n, controls, _, _, err := syscall.Recvmsg(c.fd, buffer, control, 0)
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
			continue
		}
		if err == nil {
			p, ok := readPacket(buffer[:n], c.port)
			if !ok {
				continue
			}
			if p.at, err = stamp(control[:controls]); err == nil {
				p.payload = bytes.Clone(p.payload)
				c.mu.Lock()
				c.packets = append(c.packets, p)
				c.mu.Unlock()
				continue
			}
		}
		c.mu.Lock()
		c.err = fmt.Errorf("capturing packets: %w", err)
		c.mu.Unlock()
		return
	}
}

// stamp returns the time that the kernel gave a packet, in unix nanoseconds.
func stamp(control []byte) (int64, error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if m.Header.Level == syscall.SOL_SOCKET && m.Header.Type == syscall.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return int64(binary.NativeEndian.Uint64(m.Data))*int64(time.Second) + int64(binary.NativeEndian.Uint64(m.Data[8:])), nil
		}
	}
	return 0, errors.New("a packet has no time")
}

// readPacket reads an IPv4 packet and says whether it is one of the port's that
// carries data or opens a connection.
func readPacket(b []byte, port uint16) (packet, bool) {
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != syscall.IPPROTO_TCP {
		return packet{}, false
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if total > len(b) || total < head+20 {
		return packet{}, false
	}
	b = b[head:total]
	from, to := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	p := packet{client: from, fromStore: from == port, sequence: binary.BigEndian.Uint32(b[4:])}
	if from != port && to != port {
		return packet{}, false
	}
	if p.fromStore {
		p.client = to
	}
	start := int(b[12]>>4) * 4
	if start > len(b) {
		return packet{}, false
	}
	const syn = 2
	p.payload, p.opens = b[start:], b[13]&syn != 0
	return p, p.opens || len(p.payload) > 0
}

// take adds a packet to its direction. What was sent again is dropped; what is
// missing is an error.
func (h *half) take(p packet) error {
	if p.opens {
		*h = half{next: p.sequence + 1, open: true, messages: h.messages}
		return nil
	}
	if !h.open {
		h.next, h.open = p.sequence, true
	}
	behind := int32(h.next - p.sequence)
	if behind < 0 {
		return errors.New("the capture has missed packets")
	}
	if int(behind) >= len(p.payload) {
		return nil
	}
	payload := p.payload[behind:]
	h.next += uint32(len(payload))
	h.text = append(h.text, payload...)
	h.marks = append(h.marks, mark{len(h.text), p.at})
	return nil
}

// cut makes messages of the text, as far as they are whole.
func (h *half) cut() error {
	done, m := 0, 0
	at := func(position int) int64 {
		for h.marks[m].end <= position {
			m++
		}
		return h.marks[m].at
	}
	for done < len(h.text) {
		length, err := messageLength(h.text[done:])
		if err != nil {
			return err
		}
		if length == 0 {
			break
		}
		first := at(done)
		h.messages = append(h.messages, message{h.text[done : done+length], first, at(done + length - 1)})
		done += length
	}
	var marks []mark
	for _, left := range h.marks {
		if left.end > done {
			marks = append(marks, mark{left.end - done, left.at})
		}
	}
	h.text, h.marks = bytes.Clone(h.text[done:]), marks
	return nil
}

// messageLength returns the length of the first command or reply in a text, 0 when
// it is not all there.
func messageLength(text []byte) (int, error) {
	line := bytes.Index(text, []byte("\r\n"))
	if line < 0 {
		return 0, nil
	}
	length := line + 2
	switch text[0] {
	case '+', '-', ':':
		return length, nil
	case '$', '*':
		n, err := strconv.Atoi(string(text[1:line]))
		if err != nil {
			return 0, fmt.Errorf("the store's protocol: %q", text[:line])
		}
		if text[0] == '$' {
			if n >= 0 {
				length += n + 2
			}
			if length > len(text) {
				return 0, nil
			}
			return length, nil
		}
		for range max(n, 0) {
			part, err := messageLength(text[length:])
			if part == 0 || err != nil {
				return 0, err
			}
			length += part
		}
		return length, nil
	}
	return 0, fmt.Errorf("the store's protocol: %q", text[:min(line, 64)])
}

// arguments returns the words of a command.
func arguments(command []byte) []string {
	lines := bytes.Split(command, []byte("\r\n"))
	var words []string
	for i := 2; i < len(lines); i += 2 {
		words = append(words, string(lines[i]))
	}
	return words
}

// exchanges returns the calls since the last time, of all connections. The echo is
// to send a text to the store and back: all that came before it has been seen when
// it is.
func (c *capture) exchanges(t testing.TB, echo func(text string)) []exchange {
	end := fmt.Sprintf("the end of %d", time.Now().UnixNano())
	echo(end)
	var packets []packet
	for deadline, seen := time.Now().Add(30*time.Second), false; !seen; time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		fresh, err := c.packets, c.err
		c.packets = nil
		c.mu.Unlock()
		if err == nil && time.Now().After(deadline) {
			err = errors.New("the capture does not come to its end")
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range fresh {
			seen = seen || p.fromStore && bytes.Contains(p.payload, []byte(end))
		}
		packets = append(packets, fresh...)
	}
	found, err := c.pair(packets)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// pair finds the answer of each call: a store answers in order.
func (c *capture) pair(packets []packet) ([]exchange, error) {
	for _, p := range packets {
		f := c.flows[p.client]
		if f == nil {
			f = &flow{}
			c.flows[p.client] = f
		}
		direction := &f.commands
		if p.fromStore {
			direction = &f.replies
		}
		if err := direction.take(p); err != nil {
			return nil, err
		}
	}
	var found []exchange
	for _, f := range c.flows {
		if err := errors.Join(f.commands.cut(), f.replies.cut()); err != nil {
			return nil, err
		}
		pairs := min(len(f.commands.messages), len(f.replies.messages))
		for i, command := range f.commands.messages[:pairs] {
			reply := f.replies.messages[i]
			words := arguments(command.text)
			if reply.text[0] != ':' || len(words) < 4 || words[0] != "EVALSHA" && words[0] != "EVAL" {
				continue
			}
			count, err := strconv.ParseInt(string(bytes.TrimSpace(reply.text[1:])), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("the store's protocol: %w", err)
			}
			found = append(found, exchange{key: words[3], count: count, sent: command.first, answered: reply.last})
		}
		f.commands.messages, f.replies.messages = f.commands.messages[pairs:], f.replies.messages[pairs:]
	}
	return found, nil
}
