"""The shapes of the JSON that pages show; with those of `actions.py`, `/openapi.json` is made from them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Sort = Literal["size", "confidence", "name"]
CategoryFilter = Literal["all", "known", "novel", "unsure", "changed"]
ImageFilter = Literal["all", "undecided", "confirmed", "unsure", "changed", "set_aside"]
ImageSort = Literal["doubtful", "typical", "name"]


class Alike(BaseModel):
    """Categories whose names differ only in case, accents, spaces or punctuation."""

    names: list[str]
    ids: list[int]


class Standing(BaseModel):
    """Progress of the review, and the version of the state that a response is about."""

    version: str = Field(description="Identifies the state; every decision names the version it was made on.")
    round: int = Field(description="How many times the run has been clustered.")
    run: str
    images: int = Field(description="Without those set aside.")
    categories: int
    confirmed: int = Field(description="Images whose category is decided.")
    unsure: int = Field(description="Images marked so, or undecided with a confidence below 50 %.")
    set_aside: int = Field(description="Photos set aside in this round.")
    aside: int = Field(description="Photos that are left out because they were set aside in earlier rounds.")
    changed: int = Field(description="Images that are not where the run, or the round before, put them.")
    decisions: int = Field(description="Decisions that count, in this round.")
    undo: str | None = Field(description="What undoing would take back.")
    redo: bool
    news: str | None = Field(description="What the last clustering changed.")
    note: str | None = Field(description="Something a person should know, for example that photos are missing.")


class Category(BaseModel):
    """A category as its card shows it."""

    id: int
    name: str
    known: bool = Field(description="Had labelled images before the run.")
    named: bool = Field(description="Named by a person.")
    size: int
    confidence: float = Field(description="Mean over its images.")
    confirmed: int
    unsure: int = Field(description="Images marked so, or undecided with a confidence below 50 %.")
    changed: int
    examples: list[int] = Field(description="Rows of typical images.")


class Near(Category):
    """A category and its similarity to another."""

    similarity: float


class ImageCard(BaseModel):
    """An image as a grid shows it."""

    row: int = Field(description="Its row in the clusters table.")
    file: str
    category: int
    category_name: str
    runner_up: str | None = Field(description="The next best category.")
    confidence: float
    mark: Literal["undecided", "confirmed", "unsure", "set_aside"]
    labelled: bool = Field(description="Labelled before the run.")
    changed: bool
    was: str | None = Field(description="The previous category of a changed image.")
    similarity: float | None = None


class Node(BaseModel):
    """A cluster of a coarser level."""

    level: int
    cluster: int
    title: str
    known: bool = Field(description="Whether it grew around known categories.")
    categories: int
    images: int
    open: bool = Field(description="Whether the list shows this node or one below it.")
    children: list[Node] = []


class Paged(BaseModel):
    """A part of a list."""

    standing: Standing
    total: int
    page: int
    pages: int


class CategoryList(Paged):
    """Categories, a page of them."""

    sort: Sort
    filter: CategoryFilter
    q: str
    level: int | None
    cluster: int | None
    tree: list[Node]
    categories: list[Category]
    files: int = Field(description="Number of images whose file name contains the search words.")


class ImageList(Paged):
    """Images, a page of them."""

    sort: ImageSort
    filter: ImageFilter
    q: str
    images: list[ImageCard]


class Choice(BaseModel):
    """A folder or a value that photos can be filtered by, and how many of them have it."""

    value: str
    images: int


class Facets(BaseModel):
    """What photos can be filtered by."""

    folders: list[Choice]
    days: list[str] | None = Field(description="First and last day, if any is known; null while they are being read.")
    columns: dict[str, list[Choice]] = Field(description="Columns of the user's own table, and the camera by EXIF.")


class FilteredImages(ImageList):
    """Images of all categories, a page of them, and what they can be filtered by."""

    facets: Facets
    folder: str
    since: str
    until: str
    columns: list[str] = Field(description="Such as station=north: the value that photos have in a column.")


class Spot(BaseModel):
    """A category on the map, at the middle of its images."""

    id: int
    name: str
    known: bool
    size: int
    x: int
    y: int


class Map(BaseModel):
    """Positions of images, similar ones together. Lists are in the order of `row`, without images set aside."""

    standing: Standing
    width: int
    height: int
    total: int = Field(description="Number of images; if there are many, the map shows a sample.")
    row: list[int]
    x: list[int]
    y: list[int]
    category: list[int]
    confidence: list[int] = Field(description="In per cent.")
    day: list[int] | None = Field(description="Days since 1970, -1 if unknown; null while they are being read.")
    categories: list[Spot]


class Rows(BaseModel):
    """All images of a list, including those on its other pages."""

    standing: Standing
    rows: list[int]


class SuggestedName(BaseModel):
    """A suggested name for a novel category; nothing is named automatically."""

    name: str
    source: Literal["word list", "file names", "most similar known category"]
    score: float = Field(description="Strength of the evidence for it, from 0 to 1.")


class CategoryPage(ImageList):
    """A category: a page of its images, the most similar categories, and suggested names."""

    suggested: list[SuggestedName]

    category: Category
    neighbours: list[Near]


class ImagePage(BaseModel):
    """An image and what looks like it."""

    standing: Standing
    image: ImageCard
    category: Category
    similar: list[ImageCard]
    before: int | None = Field(description="The previous image of its category, most confident first.")
    after: int | None


class Similar(BaseModel):
    """The category that an image from outside the run would be sorted into, and the most similar images."""

    standing: Standing
    category: Category | None = Field(description="The nearest category as it is now; null if all of it is set aside.")
    fits: bool = Field(description="Whether it is as close to that category as its images usually are.")
    confidence: float
    runner_up: str | None = Field(description="The next best category.")
    similar: list[ImageCard]


class Suggestion(BaseModel):
    """A decision that would settle many images, that is, give them their right name."""

    kind: Literal["name", "merge", "split", "doubtful", "labels", "confirm"]
    categories: list[Category]
    images: int = Field(description="How many images it is expected to settle; for `confirm`, how many it confirms.")
    parts: int | None = Field(description="For `split`, into how many parts.")
    reason: str
    rows: list[int] = Field(description="The images to look at, if it is about particular ones.")


class Suggestions(BaseModel):
    """What to look at next, the best first."""

    standing: Standing
    suggestions: list[Suggestion]


class Finding(BaseModel):
    """Photos of one kind to set aside."""

    kind: Literal["near-duplicate", "blurred", "dark", "empty"]
    rows: list[int] = Field(description="All to set aside; of near-duplicates, all but the first of each group.")
    groups: list[list[ImageCard]] = Field(description="Some of them; of near-duplicates, the first is the one to keep.")
    last: list[int] = Field(
        description="Of the rows, or of near-duplicates of those kept, the ones with near-duplicates all of which are "
        "blurred, dark, empty or set aside: with them the last of a group would go."
    )


class Check(BaseModel):
    """Photos to set aside that the search has found so far."""

    standing: Standing
    state: Literal["idle", "running", "done"]
    done: int
    total: int
    seconds_left: float | None
    failed: str | None = Field(description="Why the search failed, if it did.")
    findings: list[Finding]


class AsidePhoto(BaseModel):
    """A photo that was set aside."""

    round: int = Field(description="The round it was set aside in; with `row`, what `restore` takes.")
    row: int = Field(description="Its row in the clusters table of that round.")
    file: str
    category_name: str = Field(description="Its category at the time.")
    time: float
    reason: str | None = Field(description="Why, if Check found it.")
    restored: bool = Field(description="Whether it comes back when the run is reclustered.")


class SetAside(Paged):
    """Photos that are set aside, in this round and in earlier ones, the latest first."""

    rows: list[int] = Field(description="All of this round.")
    photos: list[tuple[int, int]] = Field(description="All of earlier rounds that are not taken back: round and row.")
    asides: list[AsidePhoto]


class Part(BaseModel):
    """A part that a category could be split into."""

    size: int
    rows: list[int]


class Parts(BaseModel):
    """The parts that a category falls into: first the one that keeps its name, then the others by size."""

    standing: Standing
    category: Category
    parts: list[Part]
