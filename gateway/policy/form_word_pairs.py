"""Names of secrets that consist of two words, one from each of two lists. `form_reading` finds them in the texts of a form.

Items of the lists are written as in `form_words`: `word*` matches the beginning of a word, `*word` its end.
"""

from __future__ import annotations

from gateway.policy.form_words import SecretKind

PAIRS: tuple[tuple[SecretKind, str, str], ...] = (
    (
        "code",
        """
        code, codes, digit code, digits, código, códigos, codice, codici, kode, kod, код, кода, коды, цифры, رمز, رموز, كود, کوڈ, कोड,
        কোড, コード, 코드, 代码, ziffern, chiffres, dígitos, cifras, cifre
        """,
        """
        google authenticator, microsoft authenticator, authy, duo mobile, duo app, okta verify, aegis authenticator, freeotp,
        ms authenticator, authenticator app, authentifizierungs app, authentifikator app, गूगल ऑथेंटिकेटर, গুগল অথেনটিকেটর,
        گوگل آتھنٹیکیٹر
        """,
    ),
    (
        "code",
        """
        code, codes, pin, código, códigos, codice, kode, kod, код, кода, коды, رمز, رموز, كود, کوڈ, कोड, কোড,
        コード, 코드, 代码, bestätigungscode, verifizierungscode, anmeldecode
        """,
        """
        2fa, mfa, two factor, two step, second factor, multi factor, doble factor, dos factores, dos pasos, segundo factor,
        double facteur, deux facteurs, deux étapes, second facteur, double authentification, dois fatores, duas etapas,
        segundo fator, due fattori, due passaggi, zwei faktor*, zwei schritten, zwei schritt*, zwei schritt bestätigung,
        zwei schritt verifizierung, dua faktor, dua langkah,
        двухфакторн*, двухэтапн*, двухфакторн* аутентификац*, двухэтапн* аутентификац*, двухэтапн* проверк*,
        zwei faktor authentifizierung, второго фактора, второй фактор, بخطوتين, خطوتين, ثنائي*, عاملين, متعدد العوامل,
        टू फैक्टर, टू स्टेप, टू स्टेप वेरिफिकेशन, दो कारक, दो चरणीय, दो चरण*, द्वि चरणीय, টু ফ্যাক্টর, দুই ধাপ*, যাচাই,
        দ্বি ধাপ*, ২এফএ, ٹو فیکٹر, ٹو سٹیپ, دو مرحلہ*, دو قدمی, دو عنصری, 二段階認証, 段階認証
        """,
    ),
    (
        "code",
        """
        number, numbers, número, numero, numéro, nummer, zahl, номер, число, nomor, angka, رقم, ارقام, नंबर, संख्या, अंक, নম্বর*,
        সংখ্যা*, نمبر, 数字, 番号, 번호
        """,
        """
        we texted you, just texted you, did we text you, sent you sms, sent you by text, sent by sms, sent by text message,
        sent via sms, aus sms,
        per sms geschickt, per sms gesendet, envoyé par sms, envoyés par sms, reçu par sms, enviamos por sms, enviado por sms,
        recibiste por sms, recebeu por sms, inviato via sms, ricevuto via sms, из смс, из sms, отправили в смс, прислали в смс,
        dikirim sms, dikirim lewat sms, kami kirim, kami kirimkan, ارسلناها, برساله نصيه, مرسل برساله نصيه, sms में, एसएमएस में आए,
        भेजे गए, এসএমএসে পাঠানো, আপনাকে পাঠানো, আমরা পাঠানো, আমাদের পাঠানো, ایس ایم ایس میں آیا, ایس ایم ایس میں, 短信, 短信中,
        SMSで 届いた, SMS로 받은
        """,
    ),
    (
        "recovery phrase",
        """
        word, words, phrase, phrases, palabras, frase, frases, mots, palavras, parole, wörter, wörtern, kata, frasa,
        слова, слов, фраза, фразу, фразы, كلمات, كلمة, عبارة, جملہ, الفاظ, فریز, فقرہ, शब्द, शब्दों, वाक्यांश, फ्रेज,
        শব্দ, শব্দগুলো, শব্দগুলি, বাক্যাংশ, ফ্রেজ, 個の単語, 単語, 单词, 个单词
        """,
        """
        wallet, wallets, hardware wallet, ledger, ledgers, trezor, metamask, seed, recovery, mnemonic, cartera, monedero,
        billetera, semilla,
        portefeuille, récupération, carteira, semente, portafoglio, recupero, dompet, benih, pemulihan, rahasia, brieftasche,
        кошельк*, секретн*, восстановлени*, сид, محفظ*, لمحفظتك, استعادة, استرداد, سرية, بذور, اولية, والٹ, سیڈ, ریکوری, بازیابی,
        वॉलेट, सीड, रिकवरी, पुनर्प्राप्ति, ওয়ালেট*, সিড, রিকভারি, পুনরুদ্ধার*, ウォレット, ウォレットの, 钱包
        """,
    ),
    (
        "card",
        """
        digits, números, dígitos, cifras, chiffres, cifre, ziffern, angka, цифры, цифр, أرقام, अंक, সংখ্যা, ہندسے, 三位数字, 三位数,
        位数字
        """,
        """
        back card, reverso, dorso, verso, al dorso, dos carte, dos tarjeta, derrière carte, detrás tarjeta, atrás tarjeta,
        trás cartão, atrás cartão, rückseite, belakang kartu, оборот*,
        обратной стороны карт*, خلف بطاقة, ظهر بطاقة, कार्ड पीछे, কার্ড* পেছনের, কার্ড* পিছনের, کارڈ پیچھے, 卡片背面, 卡背面
        """,
    ),
    (
        "card",
        """
        expiry, expiration, expiry date, expiration date, exp date, valid until, fecha caducidad, caducidad, fecha vencimiento,
        date expiration, date d'expiration, data validade, validade, data scadenza, ablaufdatum, gültigkeitsdatum, gültigkeit,
        masa berlaku, срок действия, تاريخ انتهاء, समाप्ति तिथि, वैधता, মেয়াদ*, মেয়াদ শেষ* তারিখ, میعاد, میعاد ختم ہونے تاریخ,
        وتاريخ انتهاء
        """,
        """
        cvv, cvc, security code, código seguridad, código segurança, code sécurité, cryptogramme, codice sicurezza,
        sicherheitscode, prüfziffer, kode keamanan, kartu, код безопасности, карты, رمز الأمان, بطاقة, بطاقتك, tarjeta, carte,
        cartão, karte, कार्ड, কার্ড*, کارڈ
        """,
    ),
    (
        "identity number",
        """
        number, número, numero, numéro, nummer, nomor, номер, رقم, नंबर, संख्या, নম্বর*, নাম্বার*, نمبر
        """,
        """
        social security, social insurance, national insurance, national identity, seguro social, seguridad social, sécurité sociale,
        segurança social, previdência social, carteira identidade, sicurezza sociale, jaminan sosial,
        социального страхования, удостоверения личности, ضمان اجتماعي, تأمين اجتماعي, جواز سفر, هوية,
        राष्ट्रीय पहचान, पहचान पत्र, सामाजिक सुरक्षा, पासपोर्ट, জাতীয় পরিচয়*, সামাজিক নিরাপত্তা, قومی شناختی,
        سوشل سیکیورٹی, سوشل سیکورٹی
        """,
    ),
    (
        "tax number",
        "number, número, numero, numéro, номер, رقم, नंबर, संख्या, নম্বর*, نمبر",
        """
        tax identification, identificación fiscal, identificación tributaria, identification fiscale, identificação fiscal,
        налогоплательщика, تعريف ضريبي, करदाता, করদাতা*, ٹیکس دہندہ
        """,
    ),
    (
        "bank login",
        """
        login, credentials, password, username, pin, clave, contraseña, credenciales, datos acceso, usuario, identifiant,
        identifiants, mot passe, code accès, senha, dados acesso, usuário, credenciais, kennwort, passwort,
        zugangsdaten, anmeldename, kredensial, sandi, пароль, логин, данные для входа, وكلمة مرور, كلمة مرور, اسم المستخدم,
        بيانات الدخول, पासवर्ड, लॉगिन, यूज़र आईडी, পাসওয়ার্ড, লগইন, ইউজারনেম, پاس ورڈ, لاگ ان, یوزر نیم
        """,
        """
        bank, banks, online banking, e banking, internet banking, net banking, banking, onlinebanking, banco, banca, banque,
        banca en línea, banque en ligne, банк*, интернет банк*, онлайн банк*, بنك, بنكي, حساب بنكي, नेट बैंकिंग, बैंक, ব্যাংক*,
        নেট ব্যাংকিং, অনলাইন ব্যাংকিং, بینک, نیٹ بینکنگ, آن لائن بینکنگ
        """,
    ),
    (
        "private key",
        "block, bloque, bloc, bloco, blok, блок, text, content, contents, key, 内容",
        "pem",
    ),
)  # fmt: skip
"""Kind of secret, and two lists of words: one word of the first list and one of the second together name a secret of this kind.

The two words may come in any order; small words, numbers and "your" may occur between them.
"""
