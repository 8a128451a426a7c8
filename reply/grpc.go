package reply

import (
	"net/http"
	"strings"
)

const grpcType = "application/grpc"

// grpcTypes are those of gRPC, and of gRPC-Web in its two encodings. A + and the
// format of the messages may follow, which an answer without messages has no use for.
var grpcTypes = []string{grpcType, grpcType + "-web", grpcType + "-web-text"}

// methodForm returns in which form a request gets an answer that is no GET, if one that
// is would get it in the form accepted: that of gRPC, as its content type, for a gRPC
// call, and text in place of the empty form for a HEAD, which gets no body.
func methodForm(req *http.Request, accepted string) string {
	if req.Method == "POST" {
		if kinds := req.Header["Content-Type"]; len(kinds) == 1 && len(kinds[0]) > 15 && strings.EqualFold(kinds[0][:16], grpcType) {
			return grpcForm(kinds[0], accepted)
		}
	} else if req.Method == "HEAD" && accepted == "" {
		return text
	}
	return accepted
}

// grpcForm returns that content type of gRPC which kind is, or accepted if it only
// begins like one.
func grpcForm(kind, accepted string) string {
	if end := strings.IndexAny(kind, "+; \t"); end >= 0 {
		kind = kind[:end]
	}
	for _, known := range grpcTypes {
		if strings.EqualFold(kind, known) {
			return known
		}
	}
	return accepted
}

// giveGRPC answers a gRPC call. The protocol (gRPC over HTTP2, Responses) lets a call
// that fails at once have a trailers-only answer: HTTP status 200, and what are
// otherwise the trailers in the header; nothing comes after it. gRPC-Web has the same.
// Any other HTTP status would reach the caller as a code that a client may take for a
// fault of the network.
func giveGRPC(f *Fields, a *answer, w http.ResponseWriter, kind string) {
	h := w.Header()
	h["Content-Type"] = []string{kind}
	h["Grpc-Status"] = []string{a.code}
	h["Grpc-Message"] = []string{a.message}
	delete(h, "Content-Length")
	if f.expose {
		expose(h, grpcNames)
	}
	w.WriteHeader(http.StatusOK)
}
