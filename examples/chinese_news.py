"""Chinese headlines by topic, by character or by word: raw text in, no spaces needed.

    python examples/chinese_news.py                                             # made-up headlines, the bundled model
    python examples/chinese_news.py zh train.tsv dev.tsv --limit 3000           # `label TAB text`
    python examples/chinese_news.py --segment jieba                             # words: pip install 'elmokit[chinese]'

The text must be cut as the model's training text was: the model remembers that, and a model of another origin is told
with --segment. The bundled one reads characters, so for words a tiny model is trained first. What to see: accuracy by
topic, and for a new headline the topics with their probabilities.
"""

from __future__ import annotations

import random

from start import arguments, open_model, segment_of

from elmokit.tasks import TaskOptions, TextExample, fit, read_texts
from elmokit.text.tokens import SegmenterName, segmenter, words

TOPICS = {
    "体育": (["球队", "前锋", "主教练", "门将"], ["赢得比赛", "打进两球", "夺得冠军", "无缘决赛"]),
    "财经": (["央行", "股市", "投资者", "上市公司"], ["提高利率", "利润下降", "宣布降息", "收购股份"]),
    "科技": (["新手机", "芯片厂商", "机器人", "卫星"], ["发布系统", "进入轨道", "学会下棋", "研制成功"]),
}
TIMES = ["昨晚", "今年", "周末", "突然", "再次"]
NEW = ["门将再次赢得比赛", "央行突然宣布降息", "机器人昨晚进入轨道"]


def main() -> None:
    given = arguments(__doc__, epochs=5, segment=True)
    made = made_up(300) if given.train is None else []
    bundled = None if given.segment in ("jieba", "none") else "zh"
    elmo = open_model(given.model or bundled, (text for _, text in made), segment=given.segment or "chars")
    cut: SegmenterName = given.segment or segment_of(elmo)
    split = segmenter(cut)
    examples = [TextExample(tuple(words(split(text))), topic) for topic, text in made]
    train = examples[:240] or read_texts(given.train, segment=cut)[: given.limit]
    dev = examples[240:] or read_texts(given.dev, segment=cut)[: given.limit]
    print(f"cut by {cut}: {' | '.join(train[0].tokens)}")
    fitted = fit("classify", train, dev, TaskOptions(epochs=given.epochs), elmo=elmo, segment=cut)
    print(*fitted.notes, *fitted.scores.table(), sep="\n")
    for headline, answer in zip(NEW, fitted.model.predict(NEW), strict=True):
        likely = sorted(answer.probabilities.items(), key=lambda item: -item[1])[:3]
        print(headline, *(f"{topic} {probability:.2f}" for topic, probability in likely))


def made_up(count: int) -> list[tuple[str, str]]:
    """Topics and headlines."""
    chance, headlines = random.Random(1), []
    for _ in range(count):
        topic = chance.choice(sorted(TOPICS))
        who, what = TOPICS[topic]
        headlines.append((topic, chance.choice(who) + chance.choice(TIMES) + chance.choice(what)))
    return headlines


if __name__ == "__main__":
    main()
