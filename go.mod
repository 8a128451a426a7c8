module github.com/gatequota/gatequota

// 1.20: the interpreter gives loop variables the meaning they had before Go 1.22
// and knows no built-in of later versions; so do the compiled tests.
go 1.20
