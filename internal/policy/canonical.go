package policy

import "countersign/internal/canon"

func (s *Set) appendCanonical(dst []byte) []byte {
	w := canon.BeginObject(dst)
	if s.fastPath != nil {
		w.Bool("fast_path", *s.fastPath)
	}
	list := append(w.Name("rules"), '[')
	for i := range s.rules {
		if i > 0 {
			list = append(list, ',')
		}
		list = s.rules[i].appendCanonical(list)
	}
	w.Value(append(list, ']'))
	return w.End()
}

func (r *Rule) appendCanonical(dst []byte) []byte {
	w := canon.BeginObject(dst)
	given := func(name, value string) {
		if value != "" {
			w.String(name, value)
		}
	}
	if len(r.Approvers) > 0 {
		w.Strings("approvers", r.Approvers)
	}
	w.String("decision", r.Decision)
	given("docs_url", r.DocsURL)
	if r.Mode != modeEnforce {
		w.String("mode", r.Mode)
	}
	w.String("name", r.Name)
	w.String("reason", r.Reason)
	given("remediation", r.Remediation)
	w.String("when", r.When)
	return w.End()
}
