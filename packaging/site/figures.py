"""Draw the figures of the documentation: ``python packaging/site/figures.py`` writes them into docs/pictures.

Each figure is a function that returns its shapes; texts are pairs, English and Chinese.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
LANGUAGES = ("", "_zh")
BLUE, GREEN, ORANGE, GREY, WHITE = "#dbe7fd", "#d9f0dd", "#fde6c8", "#eceff3", "#ffffff"
INK, LINE = "#1b2430", "#5b6675"
FONT = "system-ui, sans-serif"

#: A text in English and in Chinese.
Text = tuple[str, str]


class Figure:
    """Shapes in one language; numbers are pixels from the upper left corner."""

    def __init__(self, language: int) -> None:
        self.language = language
        self.shapes: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, text: Text | None = None, fill: str = WHITE
    ) -> None:
        """A rounded box, with a text in its middle whose lines are separated by newlines."""
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{LINE}"/>'
        )
        if text is not None:
            self.text(x + width // 2, y + height // 2, text)

    def text(self, x: int, y: int, text: Text, anchor: str = "middle") -> None:
        """A text around a point."""
        lines = text[self.language].split("\n")
        top = y - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.shapes.append(
                f'<text x="{x}" y="{top + 18 * number}" text-anchor="{anchor}">{escape(line)}</text>'
            )

    def arrow(
        self, *points: tuple[int, int], text: Text | None = None, at: tuple[int, int] = (0, 0)
    ) -> None:
        """A line through points with a head at its end, and a text."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{LINE}" marker-end="url(#head)"/>'
        )
        if text is not None:
            self.text(*at, text)

    def svg(self, width: int, height: int) -> str:
        """The whole picture, on white, so that it is legible on a dark page."""
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="{FONT}" font-size="14" fill="{INK}">\n{head}\n'
            f'<rect width="{width}" height="{height}" fill="{WHITE}"/>\n'
            + "\n".join(self.shapes)
            + "\n</svg>\n"
        )


def life_of_a_task(figure: Figure) -> tuple[int, int]:
    """The states of a task."""
    figure.box(20, 60, 110, 44, ("submitted", "提交"), GREY)
    figure.box(190, 60, 110, 44, ("queued", "排队"), ORANGE)
    figure.box(360, 60, 110, 44, ("starting", "启动中"), BLUE)
    figure.box(530, 60, 110, 44, ("running", "运行中"), GREEN)
    figure.box(
        720, 60, 150, 44, ("completed, failed,\ncancelled, lost", "完成、失败、\n取消、丢失"), GREY
    )
    figure.box(530, 170, 110, 44, ("preempting", "被抢占"), BLUE)
    figure.box(720, 170, 150, 44, ("preempted", "已被抢占"), GREY)
    figure.arrow((130, 82), (188, 82))
    figure.arrow((300, 82), (358, 82), text=("admitted", "准入"), at=(330, 50))
    figure.arrow((470, 82), (528, 82))
    figure.arrow((640, 82), (718, 82))
    figure.arrow((585, 104), (585, 168), text=("evicted", "抢占"), at=(622, 136))
    figure.arrow((640, 192), (718, 192), text=("drop", "不再回来"), at=(680, 210))
    figure.arrow(
        (528, 192),
        (245, 192),
        (245, 106),
        text=("requeue: with its saved state", "自动重新排队，状态已保存"),
        at=(386, 210),
    )
    figure.arrow(
        (75, 60),
        (75, 30),
        (415, 30),
        (415, 58),
        text=("it fits at once", "放得下就直接启动"),
        at=(245, 18),
    )
    return 890, 235


def lending(figure: Figure) -> tuple[int, int]:
    """Quota that is lent and reclaimed; each square is a GPU."""
    pools = (("research", "research"), ("training", "training"), ("production", "production"))
    columns = (
        ("production is idle", "production 空闲"),
        ("training borrows 2", "training 借用 2 块"),
        ("production takes them back", "production 收回"),
    )
    used = (
        ((4, BLUE), (2, GREEN), (0, ORANGE)),
        ((4, BLUE), (2, GREEN), (2, GREEN)),
        ((4, BLUE), (2, GREY), (2, ORANGE)),
    )
    quota = (4, 2, 2)
    for column, title in enumerate(columns):
        left = 130 + 250 * column
        figure.text(left + 85, 24, title)
        for row, (amount, color) in enumerate(used[column]):
            for number in range(quota[row]):
                fill = color if number < amount else WHITE
                figure.box(left + 42 * number, 44 + 54 * row, 36, 36, fill=fill)
    for row, pool in enumerate(pools):
        figure.text(118, 62 + 54 * row, pool, "end")
    figure.text(
        215, 222, ("each color is the pool that uses a GPU", "颜色表示由哪个资源池使用"), "middle"
    )
    figure.text(
        715, 222, ("the borrower waits; grey is lent on", "借用者排队；灰色可再出借"), "middle"
    )
    return 860, 240


def eviction(figure: Figure) -> tuple[int, int]:
    """The steps of an eviction in time."""
    steps = (
        (("notice", "通知"), BLUE),
        (("grace:\nit saves", "宽限期：\n保存工作"), BLUE),
        (("state is\non disk", "状态\n已落盘"), GREEN),
        (("cancel,\nSIGTERM", "取消、\nSIGTERM"), ORANGE),
        (("processes\nhave ended", "进程\n全部退出"), ORANGE),
        (("incoming\ntask starts", "新任务\n启动"), GREEN),
    )
    for number, (text, color) in enumerate(steps):
        left = 20 + 140 * number
        figure.box(left, 40, 110, 56, text, color)
        if number:
            figure.arrow((left - 30, 68), (left - 2, 68))
    figure.text(290, 124, ("the task still runs", "任务仍在运行"))
    figure.text(640, 124, ("its claim is held until here", "资源占用保留到这里"))
    return 860, 146


def deployment(figure: Figure) -> tuple[int, int]:
    """The processes of a cluster and what they reach."""
    figure.box(20, 70, 100, 44, ("browser,\ncommands", "浏览器、\n命令行"), GREY)
    figure.box(170, 70, 90, 44, ("ingress,\nTLS", "ingress、\nTLS"), GREY)
    figure.box(300, 30, 360, 210)
    figure.text(480, 48, ("head node", "头节点"))
    figure.box(315, 70, 90, 44, ("nginx\n:8091", "nginx\n:8091"), BLUE)
    figure.box(435, 70, 90, 44, ("page, API\n:8090", "网页、API\n:8090"), BLUE)
    figure.box(555, 70, 90, 44, ("supervisor", "调度进程"), GREEN)
    figure.box(555, 175, 90, 44, ("journal", "事务日志"), ORANGE)
    figure.box(375, 175, 110, 44, ("Ray's exporter\n:8080", "Ray 指标出口\n:8080"), BLUE)
    figure.box(720, 70, 110, 44, ("worker nodes", "工作节点"), GREEN)
    figure.box(170, 175, 100, 44, ("Prometheus", "Prometheus"), GREY)
    for start, end in (
        ((120, 92), (168, 92)),
        ((260, 92), (313, 92)),
        ((405, 92), (433, 92)),
        ((525, 92), (553, 92)),
        ((600, 114), (600, 173)),
        ((645, 92), (718, 92)),
        ((270, 197), (373, 197)),
    ):
        figure.arrow(start, end)
    return 850, 255


FIGURES = {
    "life": life_of_a_task,
    "lending": lending,
    "eviction": eviction,
    "deployment": deployment,
}


def drawn() -> dict[str, str]:
    """The content of each picture by the name of its file."""
    pictures = {}
    for name, draw in FIGURES.items():
        for language, suffix in enumerate(LANGUAGES):
            figure = Figure(language)
            pictures[f"{name}{suffix}.svg"] = figure.svg(*draw(figure))
    return pictures


if __name__ == "__main__":
    for file_name, content in drawn().items():
        (PICTURES / file_name).write_text(content, encoding="utf-8")
