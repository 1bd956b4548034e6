"""What the words right before a number say it is: a phone, a card, an order.

A label decides where the digits alone do not: nine digits are a social security number only when called so,
and an order number stays one although it looks like a phone. Looks at a few characters, so it takes constant
time.
"""

import re
from typing import Final, Literal

Label = Literal["phone", "card", "national_id", "passport", "iban", "other"]

_WINDOW_CHARS: Final = 40
# How far a label reaches: "手机号是：", "my passport number is".
_REACH_CHARS: Final = 16
_SENTENCE_BREAK = re.compile(r"[。！？；;!?\n,，]")
_LABEL = re.compile(
    r"""
    (?P<phone>电话|電話|手机|手機|座机|固话|传真|傳真|联系方式|联系人|聯絡|携帯|微信|号码是|打我|
        (?<![a-z])(?:tel(?:ephone|efon|éfono)?|t[ée]l(?:[ée]phone)?|phone|mobile|cell|call|text\ me|whatsapp|
        contact|fax|dial|ring|ph|wechat|vx|wx|handy|(?:my|his|her|our)\ number|номер|телефон)(?![a-z]))
    |(?P<card>卡号|卡號|银行卡|信用卡|储蓄卡|借记卡|工资卡|付款卡|
        (?<![a-z])(?:card|pan|visa|mastercard|amex|unionpay|card[ _-]?(?:number|no)|cardnumber)(?![a-z]))
    |(?P<national_id>身份证|身份證|身分證|证件号|證件號|公民身份|社保号|社保卡号|社会保障号|军官证|驾驶证|驾照|
        居留证|주민등록번호|マイナンバー|個人番号|
        (?<![a-z])(?:ssn|social\ security|national\ (?:id|insurance|identity)|ni\ number|nino|
        identity\ (?:card|number)|id\ ?card|id_card|hkid|nric|aadhaar|cpf|dni|nie|pesel|bsn|nir|nhs|
        steuer-?id|codice\ fiscale|personnummer|tax\ id|tin|
        driver'?s?\ licen[cs]e|driving\ licen[cs]e)(?![a-z]))
    |(?P<passport>护照|護照|通行证|通行證|台胞证|回乡证|回鄉證|(?<![a-z])passport(?![a-z]))
    |(?P<iban>(?<![a-z])iban(?![a-z]))
    |(?P<other>订单|訂單|单号|單號|运单|快递|流水|编号|編號|工单|发票|合同|型号|序列|条形码|条码|货号|学号|工号|考号|票号|
        航班|批次|商品|时间戳|热线|余额|金额|总计|总额|合计|共计|
        (?<![a-z])(?:orders?|tracking|invoice|tickets?|sku|models?|serial|imei|isbn|issn|ean|upc|ref|reference|case|
        issue|pr|commit|version|timestamp|ts|epoch|doi|arxiv|build|batch|item|product|flight|sn|part|bytes|size|total|used|free|
        count|amount|balance|sum)(?![a-z]))
    """,
    re.VERBOSE,
)
# An order's label counts only when nothing but this stands between it and the number.
_TIGHT = re.compile(r"(?:号码?|號碼?|编号|\b(?:id|no|number|num|is)\b|[\s:=#\"'.为是_-]){0,8}+")


def label_before(lower: str, start: int) -> Label | None:
    """What the number at `start` of the lower-case text is called, or None."""
    window = lower[max(0, start - _WINDOW_CHARS) : start]
    begin = 0
    for stop in _SENTENCE_BREAK.finditer(window):
        begin = stop.end()
    found: Label | None = None
    for match in _LABEL.finditer(window, begin):
        name = match.lastgroup
        gap = len(window) - match.end()
        if name == "other":
            if _TIGHT.fullmatch(window, match.end()):
                found = "other"
        elif gap <= _REACH_CHARS:
            found = name  # type: ignore[assignment]  # a group's name is one of the labels
    return found
