"""Which words end like a domain name. The lists and rules are the service's."""

from __future__ import annotations

__all__ = [
    "AMBIGUOUS_EXTENSIONS",
    "FILE_EXTENSIONS",
    "GENERIC_DOMAINS",
    "ends_like_domain",
    "is_file_name",
]

from countersign._words import lower

# These end file names, and no host names.
FILE_EXTENSIONS = frozenset(
    """7z asp aspx avi bak bin bmp bz2 c cfg class conf cpp cs css csv dat db deb dll doc
    docx eml env epub exe flac gif go gz h heic hpp htm html ico ics ini ipynb iso jar java
    jpeg jpg js json jsonl jsp jsx key kt lock log m4a mkv mp3 mp4 mpeg msg msi npy odp ods
    odt ogg out parquet pdf pem php png ppt pptx proto psd rar rb rpm rtf scala sql sqlite
    svg swift tar tgz tif tiff toml ts tsv tsx ttf txt wav webm webp whl wmv woff woff2 xls
    xlsx xml xz yaml yml""".split()
)
# These end a file name if a single word precedes them, and a host name otherwise.
AMBIGUOUS_EXTENSIONS = frozenset("ai cc md mov pl ps py rs sh so zip".split())
# The most used top-level domains of more than two letters. Those of two letters are countries.
GENERIC_DOMAINS = frozenset(
    """academy accountant actor aero africa agency app arpa art asia autos bank bar beauty
    best bet bid bike bio biz blog boats bond build business buzz cafe camp capital care
    casa cash casino cat cfd chat church city click clinic cloud club codes coffee com
    community company computer consulting cool coop country credit cyou data date day dev
    digital direct directory domains download earth edu education email energy engineering
    enterprises estate events example exchange expert express faith family fans farm finance
    financial fit foo food foundation fun fund fyi gallery game games gdn gives global gmbh
    gold gov graphics group guide guru hair health help homes host hosting house icu inc
    info ink institute int international investments invalid jetzt jobs land law lawyer
    legal life link live llc loan loans lol love ltd makeup management market marketing mba
    media men menu mil mobi moe money monster motorcycles museum name net network news ngo
    ninja nyc ong one onion online org organic page party pet photo photos pics pictures
    pink place plus post press pro productions promo properties pub quest racing realty red
    ren rent repair report rest review reviews rip rocks run sale sbs school science
    security services sexy shop show site skin social software solar solutions space store
    stream studio style support surf systems team tech technology tel test tips today tokyo
    tools top tours town toys trade trading training travel tube university uno vegas
    ventures video vip vision vote wang watch webcam website wiki win wine work works world
    wtf xin xxx xyz yachts yoga zone""".split()
)
_FOREIGN_DOTS = frozenset("\u3002\uff0e\uff61")


def ends_like_domain(host: str, known: bool) -> bool:
    """Whether a word in lower case ends like a domain name. With ``known``, only the listed
    top-level domains count.

    >>> ends_like_domain("example.com", True), ends_like_domain("report.pdf", False)
    (True, False)
    """
    before, _, top = host.rpartition(".")
    if not top.isascii():
        return bool(before) or not _FOREIGN_DOTS.isdisjoint(top)
    if not before or len(top) < 2 or top in FILE_EXTENSIONS:
        return False
    if not (top.isalpha() and top == lower(top)):
        return top.startswith("xn--")
    return not known or len(top) == 2 or top in GENERIC_DOMAINS


def is_file_name(text: str) -> bool:
    """Whether a text is a single name with an ambiguous extension."""
    name, _, extension = text.partition(".")
    return lower(extension) in AMBIGUOUS_EXTENSIONS and not any(c in name for c in "/:@?#")
