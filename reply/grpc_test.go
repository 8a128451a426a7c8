package reply

import "testing"

func TestMethodForm(t *testing.T) {
	for _, test := range []struct{ method, kind, accepted, want string }{
		{"POST", "application/grpc", "", "application/grpc"},
		{"POST", "application/grpc+proto", "", "application/grpc"},
		{"POST", "application/grpc+json", problemJSON, "application/grpc"},
		{"POST", "Application/gRPC", "", "application/grpc"},
		{"POST", "application/grpc;charset=utf-8", "", "application/grpc"},
		{"POST", "application/grpc ; x=y", "", "application/grpc"},
		{"POST", "application/grpc-web", "", "application/grpc-web"},
		{"POST", "application/grpc-web+thrift", "", "application/grpc-web"},
		{"POST", "application/grpc-web-text", "", "application/grpc-web-text"},
		{"POST", "APPLICATION/GRPC-WEB-TEXT+PROTO", "", "application/grpc-web-text"},
		{"POST", "application/grpc-other", "", ""},
		{"POST", "application/grpc-web-textual", problemJSON, problemJSON},
		{"POST", "application/grpcs", "", ""},
		{"POST", "application/grp", "", ""},
		{"POST", "xapplication/grpc", "", ""},
		{"POST", "application/json", "", ""},
		{"POST", "application/json", problemJSON, problemJSON},
		{"POST", "", "", ""},
		{"PUT", "application/grpc", "", ""},
		{"post", "application/grpc", "", ""},
		{"HEAD", "", "", text},
		{"HEAD", "application/grpc", problemJSON, problemJSON},
		{"DELETE", "", problemJSON, problemJSON},
	} {
		req := request(test.method)
		if test.kind != "" {
			req.Header.Set("Content-Type", test.kind)
		}
		if got := methodForm(req, test.accepted); got != test.want {
			t.Errorf("%s %s, %q: %q, want %q", test.method, test.kind, test.accepted, got, test.want)
		}
	}
	if got := methodForm(request("POST", "Content-Type", "application/grpc", "Content-Type", "text/html"), ""); got != "" {
		t.Errorf("two content types: %q", got)
	}
}
