package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The public learns each status as members see it, and the better of the two anchors.
func TestMinimize(t *testing.T) {
	t.Parallel()
	v := &Verification{
		Artifact: ArtifactApproval, Integrity: Finding{Standing: StandingValid}, Signature: Finding{Standing: StandingValid}, Key: KeyRetired,
		Evidence: Finding{Standing: StandingValid}, VerifiedAt: 7,
	}
	for _, c := range []struct{ tsa, opentimestamps, want AnchorStanding }{
		{NotAnchored, NotAnchored, NotAnchored},
		{AnchorVerified, AnchorPending, AnchorVerified},
		{AnchorFailed, AnchorVerified, AnchorVerified},
		{AnchorPending, AnchorFailed, AnchorPending},
		{NotAnchored, AnchorPending, AnchorPending},
		{AnchorFailed, NotAnchored, AnchorFailed},
	} {
		v.TSA.Standing, v.OpenTimestamp.Standing = c.tsa, c.opentimestamps
		want := PublicVerification{
			Artifact: ArtifactApproval, Overall: Verified, Integrity: StandingValid, Signature: StandingValid, Key: KeyRetired, Anchors: c.want, VerifiedAt: 7,
		}
		if diff := cmp.Diff(want, Minimize(v)); diff != "" {
			t.Errorf("%s and %s (-want +got):\n%s", c.tsa, c.opentimestamps, diff)
		}
	}
}
