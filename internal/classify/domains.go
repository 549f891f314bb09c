package classify

import (
	"strings"
	"unicode/utf8"
)

// fileExtensions end names of files but not of hosts. Some that are also top-level domains (md, py,
// sh) are in ambiguousExtensions.
var fileExtensions = wordSet(`7z asp aspx avi bak bin bmp bz2 c cfg class conf cpp cs css csv dat db deb dll doc docx eml env epub exe
	flac gif go gz h heic hpp htm html ico ics ini ipynb iso jar java jpeg jpg js json jsonl jsp jsx key kt lock log m4a mkv mp3 mp4 mpeg msg
	msi npy odp ods odt ogg out parquet pdf pem php png ppt pptx proto psd rar rb rpm rtf scala sql sqlite svg swift tar tgz tif tiff toml ts tsv
	tsx ttf txt wav webm webp whl wmv woff woff2 xls xlsx xml xz yaml yml`)

// ambiguousExtensions end names of files if only one word precedes them, and hosts otherwise:
// README.md and api.example.md.
var ambiguousExtensions = wordSet(`ai cc md mov pl ps py rs sh so zip`)

// genericDomains are the most used top-level domains of more than two letters. All domains of two
// letters are countries.
var genericDomains = wordSet(`academy accountant actor aero africa agency app arpa art asia autos bank bar beauty best bet bid bike bio biz blog
	boats bond build business buzz cafe camp capital care casa cash casino cat cfd chat church city click clinic cloud club codes coffee com
	community company computer consulting cool coop country credit cyou data date day dev digital direct directory domains download earth
	edu education email energy engineering enterprises estate events example exchange expert express faith family fans farm finance financial fit
	foo food foundation fun fund fyi gallery game games gdn gives global gmbh gold gov graphics group guide guru hair health help homes host
	hosting house icu inc info ink institute int international investments invalid jetzt jobs land law lawyer legal life link live llc loan loans lol
	love ltd makeup management market marketing mba media men menu mil mobi moe money monster motorcycles museum name net network news ngo
	ninja nyc ong one onion online org organic page party pet photo photos pics pictures pink place plus post press pro productions promo
	properties pub quest racing realty red ren rent repair report rest review reviews rip rocks run sale sbs school science security services
	sexy shop show site skin social software solar solutions space store stream studio style support surf systems team tech technology tel test tips
	today tokyo tools top tours town toys trade trading training travel tube university uno vegas ventures video vip vision vote wang watch
	webcam website wiki win wine work works world wtf xin xxx xyz yachts yoga zone`)

func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(text) {
		set[word] = true
	}
	return set
}

// endsLikeDomain judges a lower-case host that is only a word under a key: it must have a dot, and
// after the last one neither a number nor a file extension.
func endsLikeDomain(host string, how reading) bool {
	dot := strings.LastIndexByte(host, '.')
	top := host[dot+1:]
	for i := range len(top) {
		if top[i] >= utf8.RuneSelf {
			return dot > 0 || strings.ContainsAny(top, foreignDots)
		}
	}
	if dot <= 0 || len(top) < 2 || fileExtensions[top] {
		return false
	}
	for i := range len(top) {
		if classOf(top[i]) != lower {
			return strings.HasPrefix(top, "xn--")
		}
	}
	return how == asLink || len(top) == 2 || genericDomains[top]
}

// foreignDots are treated as dots when a name is looked up.
const foreignDots = "\u3002\uff0e\uff61"

// isFileName reports whether a text is just a name with an ambiguous extension.
func isFileName(s string) bool {
	name, extension, found := strings.Cut(s, ".")
	return found && ambiguousExtensions[lowerCase(extension)] && !strings.ContainsAny(name, "/:@?#")
}
