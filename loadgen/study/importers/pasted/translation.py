"""Translation: the words that Chinese and Japanese titles of columns are made of, in English."""

from __future__ import annotations

import re
import unicodedata

# Traditional and Japanese characters as the simplified ones, in titles and in the words below.
_SIMPLIFIED = str.maketrans(
    "並發併數請輸長顯記憶體遲時總條個開關離線單間後測試実続",
    "并发并数请输长显记忆体迟时总条个开关离线单间后测试实续",
)
_SPAN = "(?:延迟|时延|延时|耗时|用时|时间|間隔|间隔|遅延|時間|待ち時間|レイテンシー?)"
_TOKEN = "(?:tokens?|词元|字符?|令牌|トークン)"
# In this order: a word that is inside another one would cut it.
_WORDS: tuple[tuple[str, str], ...] = (
    (rf"(?:首(?:个|次)?|第一个?)\s*(?:{_TOKEN}|包)\s*(?:生成|响应)?{_SPAN}?|首字{_SPAN}?", "ttft"),
    (rf"(?:最初の|初回|先頭)\s*{_TOKEN}\s*(?:まで)?の?(?:生成)?{_SPAN}?", "ttft"),
    (rf"[每毎]\s*个?\s*(?:输出|出力)?\s*{_TOKEN}\s*(?:的|の)?(?:生成)?{_SPAN}", "tpot"),
    (rf"(?:出力)?{_TOKEN}\s*(?:あたり|当たり)の?(?:生成)?{_SPAN}", "tpot"),
    (rf"{_TOKEN}\s*之?間\s*[的の]?{_SPAN}?", "itl"),
    (rf"(?:端到端|エンドツーエンド|整体)\s*[的の]?{_SPAN}?", "e2e latency"),
    (r"(?:最大)?(?:并发|并行)\s*(?:请求|用户)?(?:数|量|度)?(?:用户)?", "concurrency"),
    (r"(?:最大)?同時\s*(?:接続|実行|リクエスト|ユーザー?)数?|並[列行][度数]?", "concurrency"),
    (r"(?:请求|リクエスト)\s*(?:速率|レート)", "request rate"),
    (r"[每毎]秒(?:的|の)?\s*(?:请求|查询|リクエスト)数?", "req/s"),
    (r"(?:请求|リクエスト)\s*(?:吞吐[量率]?|スループット)", "request throughput"),
    (rf"(?:总|全体|合計)\s*{_TOKEN}?\s*(?:吞吐[量率]?|スループット)", "total throughput"),
    (rf"(?:输出|生成|出力)\s*{_TOKEN}?\s*(?:吞吐[量率]?|スループット)", "output throughput"),
    (r"吞吐[量率]?|スループット", "throughput"),
    (r"(?:解码|デコード)\s*(?:速度|速率)", "decode speed"),
    (r"(?:失败|失敗|错误|エラー)(?:的|の)?(?:请求|リクエスト)?(?:总)?(?:数量?|次数|件数)", "failed requests"),
    (r"超时(?:数量?|次数)?|タイムアウト数?", "timeouts"),
    (r"(?:总|総)?(?:请求|提示词?|样本|リクエスト|プロンプト)\s*(?:总)?(?:数量?|件数)", "prompts"),
    (rf"(?:输入|提示词?|入力|プロンプト)\s*{_TOKEN}?\s*(?:长度?|数|長)", "input length"),
    (rf"(?:输出|生成|出力)\s*{_TOKEN}?\s*(?:长度?|数|長)", "output length"),
    (r"上下文(?:长度)?|コンテキスト長?", "context length"),
    (r"批(?:处理|次)?(?:大小)?|バッチ\s*(?:サイズ|数)?", "batch size"),
    (r"(?:显存|内存)(?:占用|使用量?)?|(?:GPU)?\s*メモリ(?:使用量)?", "gpu memory"),
    (r"显卡(?:型号)?|硬件|设备|ハードウェア", "hardware"),
    (r"模型(?:名称?)?|モデル(?:名)?", "model"),
    (r"(?:推理|推論)?(?:引擎|框架|エンジン|フレームワーク)", "engine"),
    (r"量子?化(?:方式|方法)?|精度", "quantization"),
    (r"场景|シナリオ|负载|負荷", "load"),
    (r"备注|说明|備考|注記", "note"),
    (r"指[标標]|项目|項目", "metric"),
    (r"数值|结果|結果", "value"),
    (r"单位|単位", "unit"),
    (r"平均值?|均值", "mean"),
    (r"中位数?|中央値", "median"),
    (r"最大值?|最高", "max"),
    (r"标准差|標準偏差", "std"),
    (r"毫秒|ミリ秒", "ms"),
    (r"(?<![每毎])秒", "s"),
    (r"(?:生成|推理|推論)?速度", "speed"),
    (r"输出|出力", "output"),
    (r"输入|入力", "input"),
    (_SPAN, "latency"),
    (r"[个の的]", " "),
)  # fmt: skip
_PATTERNS = tuple(
    (re.compile(pattern.translate(_SIMPLIFIED), re.IGNORECASE), f" {english} ") for pattern, english in _WORDS
)
_FOREIGN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_PERCENTILE = re.compile(r"[pP]?(\d\d(?:\.\d+)?)\s*(?:分位[数值]?|パーセンタイル)")
_PER_SECOND = re.compile(rf"{_TOKEN}\s*[/每毎]\s*秒", re.IGNORECASE)
_REQUESTS_PER_SECOND = re.compile(r"(?:请求|次|件|リクエスト|req)\s*/\s*秒", re.IGNORECASE)


def translate_title(title: str) -> str:
    """Translate a title's Chinese and Japanese words into English, its letters to plain width.

    A word that is not known stays as it is, so that the title stays unlike others.
    """
    plain = unicodedata.normalize("NFKC", title)
    if _FOREIGN.search(plain) is None:
        return plain
    plain = plain.translate(_SIMPLIFIED)
    plain = _REQUESTS_PER_SECOND.sub("req/s", _PER_SECOND.sub("tok/s", plain))
    plain = _PERCENTILE.sub(r" p\1 ", plain)
    for pattern, english in _PATTERNS:
        plain = pattern.sub(english, plain)
    inside = re.sub(r"\s+([)\]])", r"\1", re.sub(r"([(\[])\s+", r"\1", plain))
    return " ".join(inside.split())
