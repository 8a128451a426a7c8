// In a version that is known to be vulnerable, and stays so.
module example.com/try

go 1.20

require golang.org/x/text v0.3.5
