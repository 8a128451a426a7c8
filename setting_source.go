package gatequota

import (
	"errors"
	"net/netip"
	"net/textproto"
	"strconv"

	"github.com/gatequota/gatequota/source"
)

// criterion checks the options under path that say by what clients are told apart.
// An address that is no part of it is found as whence says, which may be nil.
func (o *options) criterion(path string, config *SourceCriterion, whence *IPStrategy) source.Criterion {
	c := source.Criterion{IPv6Subnet: 64}
	if config.RequestHeaderName != nil {
		c.Headers = append(c.Headers, o.header(path+"requestHeaderName", o.text(path+"requestHeaderName", config.RequestHeaderName)))
	}
	for i, name := range o.list(path+"requestHeaderNames", config.RequestHeaderNames) {
		c.Headers = append(c.Headers, o.header(path+"requestHeaderNames["+strconv.Itoa(i)+"]", name))
	}
	c.Host = o.boolean(path+"requestHost", config.RequestHost)
	c.Cookie = o.token(path+"cookieName", config.CookieName, "the name of a cookie is wanted")
	c.Query = o.given(path+"queryParameter", config.QueryParameter)
	if config.PathSegment != nil {
		c.Segment = int(o.integer(path+"pathSegment", config.PathSegment, 1, 100))
	}
	c.Claim = o.given(path+"jwtClaim", config.JWTClaim)
	c.TLSSubject = o.boolean(path+"tlsClientSubject", config.TLSClientSubject)
	c.OnMissing = o.choice(path+"onMissing", or(config.OnMissing, source.MissingAddress),
		source.MissingAddress, source.MissingSkip, source.MissingShared, source.MissingRefuse)
	if config.IPStrategy != nil {
		c.Address = true
		o.address(path+"ipStrategy.", config.IPStrategy, &c)
	} else if whence != nil {
		o.address("ipStrategy.", whence, &c)
	}
	source.Prepare(&c)
	return c
}

// address checks which address is the client's.
func (o *options) address(path string, config *IPStrategy, c *source.Criterion) {
	c.Depth = int(o.integer(path+"depth", or(config.Depth, 0), 0, 1000))
	c.Excluded = o.networks(path+"excludedIPs", config.ExcludedIPs)
	c.Trusted = o.networks(path+"trustedIPs", config.TrustedIPs)
	c.IPv4Subnet = int(o.integer(path+"ipv4Subnet", or(config.IPv4Subnet, 32), 1, 32))
	c.IPv6Subnet = int(o.integer(path+"ipv6Subnet", or(config.IPv6Subnet, 64), 1, 128))
	set := 0
	for _, given := range []bool{c.Depth > 0, len(c.Excluded) > 0, len(c.Trusted) > 0} {
		if given {
			set++
		}
	}
	if set > 1 {
		o.fail(errors.New("option " + path + "depth: only one of depth, excludedIPs and trustedIPs can find the client"))
	}
}

// networks reads a list of addresses and CIDR ranges.
func (o *options) networks(option string, texts []string) []netip.Prefix {
	var networks []netip.Prefix
	for i, text := range o.list(option, texts) {
		network, err := source.ParsePrefix(text)
		if err != nil {
			o.refuse(option+"["+strconv.Itoa(i)+"]", text, "an address or a CIDR range is wanted")
		}
		networks = append(networks, network)
	}
	return networks
}

// header reads the name of a header of a request, into its canonical form.
func (o *options) header(option, name string) string {
	if !tokenPattern.MatchString(name) {
		o.refuse(option, name, "the name of a header is wanted")
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	switch canonical {
	case "Host":
		o.refuse(option, name, "Host is no header here; use sourceCriterion.requestHost")
	case "Connection", "Content-Length", "Transfer-Encoding", "Trailer":
		o.refuse(option, name, "this header is about the connection and not about the client")
	}
	return canonical
}
