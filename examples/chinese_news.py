"""Topics of Chinese headlines, by character or by word, from raw text without spaces.

    python examples/chinese_news.py                                             # generated headlines, bundled model
    python examples/chinese_news.py zh train.tsv dev.tsv --limit 3000           # `label TAB text`
    python examples/chinese_news.py --segment jieba                             # words: pip install 'elmokit[chinese]'

Text is tokenised as the model's training text was, or by --segment. The bundled model reads characters; the vector of a
word is the mean of the vectors of its characters. The script prints the accuracy by topic, and the topics of new
headlines with their probabilities.
"""

from __future__ import annotations

import random

from start import arguments

from elmokit import Elmo
from elmokit.tasks import TaskOptions, TextExample, fit, read_texts

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
    elmo = Elmo.load(given.model or "zh", segment=given.segment)
    examples = [TextExample(tuple(token.text for token in elmo.tokenize(text)), topic) for topic, text in made]
    train = examples[:240] or read_texts(given.train, segment=elmo.segment)[: given.limit]
    dev = examples[240:] or read_texts(given.dev, segment=elmo.segment)[: given.limit]
    print(f"tokenised by {elmo.segment}: {' | '.join(train[0].tokens)}")
    fitted = fit("classify", train, dev, TaskOptions(epochs=given.epochs), elmo=elmo)
    print(*fitted.notes, *fitted.scores.table(), sep="\n")
    for headline, answer in zip(NEW, fitted.model.predict(NEW), strict=True):
        likely = sorted(answer.probabilities.items(), key=lambda item: -item[1])[:3]
        print(headline, *(f"{topic} {probability:.2f}" for topic, probability in likely))


def made_up(count: int) -> list[tuple[str, str]]:
    """Generated headlines with their topics."""
    chance, headlines = random.Random(1), []
    for _ in range(count):
        topic = chance.choice(sorted(TOPICS))
        who, what = TOPICS[topic]
        headlines.append((topic, chance.choice(who) + chance.choice(TIMES) + chance.choice(what)))
    return headlines


if __name__ == "__main__":
    main()
