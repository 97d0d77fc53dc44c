"""An HTML page as a tree of elements, read with the standard library: enough to ask what a page says."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input", "br"}


class Element:
    def __init__(self, tag, attributes=(), parent=None):
        self.tag, self.attributes, self.parent = tag, dict(attributes), parent
        self.children = []

    def walk(self):
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    @property
    def text(self):
        """Its text and that below, spaces brought together."""
        return " ".join(self.raw.split())

    @property
    def raw(self):
        return "".join(child if isinstance(child, str) else child.raw for child in self.children)

    @property
    def classes(self):
        return self.attributes.get("class", "").split()

    def all(self, tag=None, cls=None, **attributes):
        return [
            element
            for element in self.walk()
            if (tag is None or element.tag == tag)
            and (cls is None or cls in element.classes)
            and all(element.attributes.get(name) == value for name, value in attributes.items())
        ]

    def one(self, tag=None, cls=None, **attributes):
        found = self.all(tag, cls, **attributes)
        assert len(found) == 1, f"{len(found)} of {tag} {cls} {attributes}"
        return found[0]


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.here = Element("")

    def handle_starttag(self, tag, attributes):
        element = Element(tag, attributes, self.here)
        self.here.children.append(element)
        if tag not in VOID:
            self.here = element

    def handle_startendtag(self, tag, attributes):
        self.here.children.append(Element(tag, attributes, self.here))

    def handle_endtag(self, tag):
        assert tag == self.here.tag, f"</{tag}> closes <{self.here.tag}>"
        self.here = self.here.parent

    def handle_data(self, data):
        self.here.children.append(data)


def parse(text):
    """The page; every element must be closed, in the right order."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.here is reader.root, f"<{reader.here.tag}> is never closed"
    return reader.root
