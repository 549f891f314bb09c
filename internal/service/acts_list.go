package service

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"countersign/internal/ledger"
	"countersign/internal/store"
	"countersign/internal/verify"
)

// Acts lists the audit log, newest first, as the log's authenticated end proves it. An
// act that is missing, was changed or was inserted keeps its place and is marked. One
// that is older than such an act is marked as well, unless this process has seen it
// proven before: the hash that would prove it is lost.
func (s *Service) Acts(ctx context.Context, caller *Caller, before int64, limit int) ([]*ledger.StoredAct, error) {
	if err := s.authorize(ctx, caller, ledger.RoleAdmin); err != nil {
		return nil, err
	}
	acts, broken, err := s.listActs(ctx, caller.Org, before, limit)
	if err != nil {
		return nil, visible(err)
	}
	if broken != "" {
		s.log.Error(tamperedLog, "of", "the audit log")
		s.notice(metTampering{org: caller.Org, tampering: &verify.Tampering{Check: ledger.CheckAuditLog, Place: broken}, tell: true})
	}
	return acts, nil
}

// listActs is a page of the audit log, and what is wrong with it, if anything.
func (s *Service) listActs(ctx context.Context, org ledger.OrgID, before int64, limit int) (page []*ledger.StoredAct, broken string, err error) {
	end, err := s.actLogEnd(ctx, org)
	if err != nil {
		return nil, "", err
	}
	stored, err := s.store.Acts(ctx, org, before, limit)
	if err != nil {
		return nil, "", err
	}
	if end == nil {
		if len(stored) == 0 {
			return nil, "", fmt.Errorf("the audit log's end is missing or fails its authenticator: %w", ledger.ErrStateTampered)
		}
		page, _ = placeActs(stored, 0, limit)
		markActs(page, nil)
		return page, "the audit log's end is missing or fails its authenticator", nil
	}
	newest := end.Count
	if before > 0 {
		newest = min(newest, before-1)
	}
	page, strange := placeActs(stored, newest, limit)
	if strange {
		broken = "an act was inserted before the first"
	}
	if len(page) == 0 {
		return page, broken, nil
	}
	if page[0].Sequence > end.Count { // entered since the end was read, or inserted by somebody
		if end, err = s.actLogEnd(ctx, org); err != nil {
			return nil, "", err
		}
	}
	proven := make(map[int64][32]byte, len(page))
	if end != nil {
		if err := s.proveActs(ctx, end, page[0].Sequence, page[len(page)-1].Sequence, proven); err != nil {
			return nil, "", err
		}
	}
	if first := markActs(page, proven); first != 0 {
		broken = fmt.Sprintf("act %d is missing, out of order or changed", first)
	}
	return page, broken, nil
}

// actLogEnd is the end of an audit log, nil where it is missing or fails.
func (s *Service) actLogEnd(ctx context.Context, org ledger.OrgID) (*ledger.ActLog, error) {
	end, err := s.store.ActLog(ctx, org)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil || !end.Authentic(s.keys) {
		return nil, err
	}
	return end, nil
}

// placeActs puts an act without a body into each place that is empty, from the newest
// act that must be there on. Acts are numbered from 1: others are strange and left out.
func placeActs(stored []*ledger.StoredAct, newest int64, limit int) (page []*ledger.StoredAct, strange bool) {
	for _, act := range stored {
		if act.Sequence < 1 {
			strange = true
			continue
		}
		for ; newest > act.Sequence && len(page) < limit; newest-- {
			page = append(page, &ledger.StoredAct{Org: act.Org, Sequence: newest})
		}
		if len(page) >= limit {
			return page, strange
		}
		page = append(page, act)
		newest = min(newest, act.Sequence-1)
	}
	for ; newest > 0 && len(page) < limit; newest-- {
		page = append(page, &ledger.StoredAct{Sequence: newest})
	}
	return page, strange
}

// markActs replaces what is not proven, and returns the newest such act, 0 for none.
func markActs(page []*ledger.StoredAct, proven map[int64][32]byte) (first int64) {
	for i, act := range page {
		if hash, ok := proven[act.Sequence]; ok && hash == act.Hash() {
			continue
		}
		page[i] = &ledger.StoredAct{Org: act.Org, Sequence: act.Sequence, Tampered: true}
		if first == 0 {
			first = act.Sequence
		}
	}
	return first
}

// actPoint is an act whose hash is known from an authenticated end.
type actPoint struct {
	sequence int64
	hash     [32]byte
}

// proveActs finds the hashes of the acts from top down to bottom, as far as they are
// proven. It follows the log backwards, each act by the hash in the one after it, from
// the nearest act that was proven before, or from the end. Where the log is broken it
// goes on at the next act that was.
func (s *Service) proveActs(ctx context.Context, end *ledger.ActLog, top, bottom int64, proven map[int64][32]byte) error {
	if end.Last == nil {
		return nil
	}
	last := actPoint{end.Count, *end.Last}
	from, known := s.provenActs.above(end.Org, top, end.Count)
	if !known {
		from = last
	}
	broken, err := s.followActs(ctx, end.Org, from, top, bottom, proven)
	if err == nil && broken != 0 && known {
		// The database may have been restored since: the end has the last word.
		broken, err = s.followActs(ctx, end.Org, last, top, bottom, proven)
	}
	for err == nil && broken != 0 {
		from, known := s.provenActs.below(end.Org, broken)
		if !known || from.sequence < bottom {
			return nil
		}
		broken, err = s.followActs(ctx, end.Org, from, top, bottom, proven)
	}
	return err
}

// followActs follows the log from an act whose hash is known down to bottom, and returns
// where it is broken, 0 where it is not.
func (s *Service) followActs(ctx context.Context, org ledger.OrgID, at actPoint, top, bottom int64, proven map[int64][32]byte) (broken int64, err error) {
	const most = 500 // acts in memory at a time
	for at.sequence >= bottom {
		acts, err := s.store.Acts(ctx, org, at.sequence+1, int(min(most, at.sequence-bottom+1)))
		if err != nil {
			return 0, err
		}
		if len(acts) == 0 {
			return at.sequence, nil
		}
		for _, act := range acts {
			if act.Sequence != at.sequence || act.Hash() != at.hash {
				return at.sequence, nil
			}
			s.provenActs.add(org, at)
			if at.sequence <= top {
				proven[at.sequence] = at.hash
			}
			at.sequence--
			if at.sequence < bottom {
				return 0, nil
			}
			previous := act.Previous()
			if previous == nil {
				return at.sequence, nil
			}
			at.hash = *previous
		}
	}
	return 0, nil
}

const (
	provenEvery   = 100    // acts, of which one is remembered
	maxProvenActs = 50_000 // remembered, of all organizations
)

// provenActs remembers some of the acts that were proven, so that an old page of a long
// log need not be followed from the end each time.
type provenActs struct {
	mu    sync.Mutex
	acts  map[ledger.OrgID]map[int64][32]byte
	count int
}

func (p *provenActs) add(org ledger.OrgID, point actPoint) {
	if point.sequence%provenEvery != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.acts == nil || p.count >= maxProvenActs {
		p.acts, p.count = make(map[ledger.OrgID]map[int64][32]byte), 0
	}
	if p.acts[org] == nil {
		p.acts[org] = make(map[int64][32]byte)
	}
	if _, known := p.acts[org][point.sequence]; !known {
		p.count++
	}
	p.acts[org][point.sequence] = point.hash
}

// above is the next act from a sequence on that is remembered, if it is within the log.
func (p *provenActs) above(org ledger.OrgID, sequence, count int64) (actPoint, bool) {
	if sequence > count {
		return actPoint{}, false
	}
	sequence = (sequence + provenEvery - 1) / provenEvery * provenEvery
	p.mu.Lock()
	defer p.mu.Unlock()
	hash, known := p.acts[org][sequence]
	return actPoint{sequence, hash}, known && sequence <= count
}

// below is the last act before a sequence that is remembered.
func (p *provenActs) below(org ledger.OrgID, sequence int64) (found actPoint, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, hash := range p.acts[org] {
		if at < sequence && at > found.sequence {
			found, known = actPoint{at, hash}, true
		}
	}
	return found, known
}
