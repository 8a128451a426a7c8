// Command try calls what is vulnerable: parsing a crafted tag panics.
package main

import (
	"fmt"
	"os"

	"golang.org/x/text/language"
)

func main() { fmt.Println(language.Parse(os.Getenv("LANG"))) }
