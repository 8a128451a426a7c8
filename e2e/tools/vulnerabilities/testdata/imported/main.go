// Command try imports a vulnerable module, and calls none of what is vulnerable there.
package main

import (
	"fmt"

	"golang.org/x/text/language"
)

func main() { fmt.Println(language.English) }
