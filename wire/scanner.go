package wire

// maxDigits is how many digits MaxOffset has.
const maxDigits = 16

// scanner walks over a frame whose layout is known. After the first surprise it
// has failed and every further step is void.
type scanner struct {
	rest   []byte
	failed bool
}

func (s *scanner) done() bool { return !s.failed && len(s.rest) == 0 }

// has steps over text if it is next.
func (s *scanner) has(text string) bool {
	if s.failed || len(s.rest) < len(text) || string(s.rest[:len(text)]) != text {
		return false
	}
	s.rest = s.rest[len(text):]
	return true
}

func (s *scanner) expect(text string) {
	if !s.has(text) {
		s.failed = true
	}
}

func (s *scanner) skip(n int) {
	if s.failed || len(s.rest) < n {
		s.failed = true
		return
	}
	s.rest = s.rest[n:]
}

// text steps over a string without anything to unescape.
func (s *scanner) text() []byte {
	quoted := plainString(s.rest)
	if s.failed || quoted == nil {
		s.failed = true
		return nil
	}
	s.rest = s.rest[len(quoted):]
	return quoted[1 : len(quoted)-1]
}

// object steps over a JSON object.
func (s *scanner) object() []byte {
	if s.failed || len(s.rest) == 0 || s.rest[0] != '{' {
		s.failed = true
		return nil
	}
	end := valueEnd(s.rest)
	object := s.rest[:end:end]
	s.rest = s.rest[end:]
	s.failed = end == 0
	return object
}

// number steps over an integer as the encoders write it: no sign, no leading
// zeros, at most maxDigits.
func (s *scanner) number() (n uint64) {
	digits := 0
	for digits < len(s.rest) && s.rest[digits] >= '0' && s.rest[digits] <= '9' {
		digits++
	}
	if s.failed || digits == 0 || digits > maxDigits || digits > 1 && s.rest[0] == '0' {
		s.failed = true
		return 0
	}
	for _, c := range s.rest[:digits] {
		n = n*10 + uint64(c-'0')
	}
	s.rest = s.rest[digits:]
	return n
}
