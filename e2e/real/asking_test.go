package real_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net/http"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

// keySecret is what the digests of clients are made with where a test says so.
const keySecret = "Lantern-4417-of-sixteen-bytes"

// digest returns the digest of a client that is told by one header alone.
func digest(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}

// bearer returns the value of an Authorization header with a token of this payload,
// which nobody has signed.
func bearer(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return "Bearer " + encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(payload)) + "." + encode([]byte("unsigned"))
}

// do sends a request of any kind.
func do(t testing.TB, client *http.Client, r *http.Request) lab.Answer {
	t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return lab.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(text)}
}
