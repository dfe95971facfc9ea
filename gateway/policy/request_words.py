"""Words around the name of a secret that distinguish a request for the secret from a mention of it, in the languages of `form_words`.

"Enter your password" is a request; "the password policy", "we never ask for your password" and "reset the password of Alice?" only mention
a password. Items are written as in `form_words`.
"""

from __future__ import annotations

from typing import Literal

WordRole = Literal[
    "ask", "ask last", "ask own", "recite", "hand over", "after", "needed", "own", "not", "not meant", "others", "elsewhere", "of",
    "near", "any value", "about after", "about before", "doing", "event", "digits", "which", "arrived", "sent to you", "pointing",
    "courtesy", "loose", "after loose", "code name", "code channel", "address", "card", "company", "holder", "infinitive",
    "header name", "quantity", "small",
]  # fmt: skip
"""Function of a word or expression in the text of a form, such as `ask` ("enter") or `own` ("your"). Comments in `ROLES` describe each."""

ROLES: dict[WordRole, str] = {
    # A verb before its object that asks for the object ("enter").
    "ask": """
        weka, andika, enter, give, re enter, reenter, type, retype, re type, type in, input, key in, provide, supply, paste, submit,
        tell, disclose, reveal, fill in, specify, state, reply with,
        respond with, answer with, give us, give me, send us, send me, share with us, share with me, let me know, let us know,
        hand over, log in with, sign in with, need,
        need to know, require, ask for, what is, what's, whats, what was, punch in, prove with, confirm with, verify with,
        authenticate with, unlock with, quote, read me, read us, read back,
        geben, gib, gebt, gebe, tragen, trage, tippen, tippe, füge, fügen, nenne, nennen, nennt, teile, teilen, verrate, verraten,
        schreibe, schreiben, schreib, brauche, brauchen, benötigen, benötige, lautet, melden, wie ist, was ist, wie heißt, heißt,
        hieß, wie hieß,
        entrez, entrer, saisissez, saisir, saisis, tapez, taper, tape, indiquez, indiquer, indique, fournissez, fournir, fournis,
        renseignez, renseigner, collez, coller, colle,
        communiquez, communiquer, donnez, donner, donne, écrivez, insérez, insérer, précisez, envoyez nous, dites,
        comment s'appelait, quel était, quel est, quelle est, quels sont, avons besoin, ai besoin,
        introduce, introduzca, introducir, introduzcan, hace falta, escribe, escriba, escribir, ingresa, ingrese, ingresar, indica,
        indicar, proporciona, proporcione, proporcionar, pega, pegue, pegar,
        facilita, facilite, danos, dame, dime, díganos, dinos, envíanos, envíame, mándame, pásame, cómo se llamaba, teclea, teclee,
        teclear, rellena, rellene, cuál es, cuáles son, necesitamos, necesito, especifica, especifique,
        me passe, me passa, me manda, me dá, me das, mi dai, mi dia, digite, digita, digitar, insira, insere, inserir, informe,
        informar, introduza, escreva, escrever, forneça, fornecer, cole,
        colar, preencha, diga, qual é, qual era, como se chamava, qual a, quais são, precisamos, preciso,
        inserisci, inserire, inserite, inserisca, digitare, digitate, scrivi, scrivere, scriva, fornisci, fornire, fornisca,
        incolla, incollare, indicare, immetti, immettere, comunica, dimmi, dacci, come si chiamava, quali sono, abbiamo bisogno,
        voer, vul, typ, geef, plak, verstrek, vertel, stuur, wat is, schrijf, wpisz, wprowadź, podaj, podać, wklej, wpisać, zadejte,
        zadej, vložte, napište, uveďte, zadajte, adja meg, add meg, írja be, írd be, gépelje, illessze,
        introduceți, introdu, scrieți, tastați, furnizați, lipiți, unesite, unesi, upišite, upiši, zalijepite, ange, skriv, fyll i,
        klistra in, indtast, angiv, oplys, indsæt, oppgi, tast inn, fyll inn, lim inn, anna, syötä, kirjoita, liitä, kerro,
        εισαγάγετε, εισάγετε, πληκτρολογήστε, γράψτε, δώστε, συμπληρώστε, επικολλήστε, ποιος είναι,
        введите, ввести, вводите, введи, укажите, указать, укажи, впишите, вписать, вставьте, вставить, напишите, написать,
        сообщите, сообщи, пришлите, отправьте, предоставьте, назовите, скажите, наберите, как звали, какой, каков, нужен, нужны,
        введіть, вкажіть, впишіть, вставте, напишіть, повідомте, надайте,
        ادخل*, ادخال, اكتب*, كتابه, قم بادخال, زودنا*, الصق*, ارسل*, اخبرنا*, املا, ما هي, ما هو, تزويدنا, اعطنا, ضع, הזן, הזינו,
        הכנס, הכניסו, הקלד, הקלידו, כתוב, שלח, מסור, הדבק, ilagay, ipasok, itype, isulat, ibigay, sabihin,
        masukkan, masukan, ketik, ketikkan, isi, isikan, tempel, berikan, kirim, tuliskan, nhập, điền, cung cấp, gửi, dán, cho biết,
        กรอก, ป้อน, ใส่, พิมพ์, ระบุ, แจ้ง, วาง, ส่ง
    """,
    # A verb that asks for its object, before or after the object (languages with the verb at the end).
    "ask last": """
        eingeben, einzugeben, angeben, eintragen, eintippen, einfügen, mitteilen, hinterlegen, übermitteln, invoeren, invullen,
        opgeven, plakken, podanie,
        girin, giriniz, gir, girmek, yazın, yazınız, yaz, yapıştırın, yapıştır, belirtin, bildirin, paylaşın, tuşlayın, nedir,
        söyleyin, megadása,
        وارد کنید, وارد, بنویسید, بفرستید, چسبانید, درج, لکھیں, لکھیے, بتائیں, بتائیے, دیں, چسپاں, فراہم, بھیجیں, ڈالیں, کیا ہے,
        दर्ज, डालें, डालिए, लिखें, लिखिए, बताएं, बताएँ, बताइए, बतायें, दें, दीजिए, चिपकाएं, चिपकाएँ, भेजें, भरें, टाइप, प्रदान,
        पेस्ट, क्या है, पुष्टि, टाका, உள்ளிடவும், నమోదు, ਦਰਜ, daalein, dalein, likhein, darj, batayein,
        লিখুন, দিন, দিতে, প্রবেশ, টাইপ, পেস্ট, জানান, পাঠান, প্রদান, বলুন, নিশ্চিত করুন,
        输入, 輸入, 填写, 填寫, 填入, 提供, 告诉, 告訴, 告知, 粘贴, 貼上, 键入, 鍵入, 回复, 发送, 是什么, 是什麼, 是多少, 写下,
        提交, 请给, 报一下, 发给我, 给我, 发我, 发过来,
        入力, 記入, 教え, 貼り付け, 送信, 打ち込, 入れて, 提示, お知らせ, 伝え, 何です, 返信, 書いて,
        입력, 알려, 제공, 붙여, 보내, 적어, 기재, 작성, 말씀, 무엇입, 뭐예요, 써 주
    """,
    # A verb that asks for a secret only if the secret is the reader's own ("share your PIN", not "share the report on PINs").
    "ask own": """
        send, share, add, attach, upload, give, write, insert, put, confirm, verify, show, set, choose, pick, use, check, repeat,
        remember, forward, update, validate, hand, leave, post, say, read out, quote, want, see, have, needs, requires, asks for,
        bestätigen, bestätige, bestätigt, senden, sende, schicken, schicke, schick, wähle, wählen, wiederholen, confirmez,
        confirmer, envoyez, envoyer, partagez, choisissez, répétez, vérifiez,
        confirma, confirme, confirmar, envía, envíe, enviar, comparte, elige, elija, repite, repita, verifica, verifique, escolha,
        compartilhe, envie, conferma, confermare, invia, scegli, ripeti,
        подтвердите, придумайте, повторите, проверьте, 确认, 確認, 设置, 설정, 확인, 設定
    """,
    # A verb that asks to say several values one after the other. Counts only for a recovery phrase: "list your tokens" asks for no token.
    "recite": """
        list, list out, name, spell out, write out, write down, recite, enumerate, copy out, aufzählen, zählen, zähle, notieren,
        notiere,
        enumera, enumere, enumérez, énumérez, énumérer, listez, lister, lista, liste, listar, anota, anote, notez, elenca, elencare,
        elenchi, перечислите, перечисли, запишите, اذكر, اسرد, سجل, सूची बनाएं, गिनाएं, सूचीबद्ध, তালিকা, তালিকাভুক্ত, فہرست, گنوائیں,
        sebutkan, tulis, daftar, 列出, 写出, 列挙, 並べて, 나열
    """,
    # A word that asks for the contents of a file: a verb, or a name for the contents.
    "hand over": """
        paste, copy, dump, drop, put, cat, print out, upload, attach, share, send, post, give, hand over, show us, show me, provide,
        supply, submit,
        contents, content, full text, whole text, einfügen, füge, fügen, kopiere, kopieren, sende, senden, schicke, schicken, teile,
        teilen, gib, geben, hochladen, inhalt, inhalte, collez, coller, colle, copiez, copier, envoyez, envoyer, partagez, donnez,
        fournissez, téléversez, contenu, contenus, pega, pegue, pegar, copia, copie, copiar, envía, envíe, envíanos, envíame,
        mándame, pásame, comparte, comparta,
        sube, suba, proporciona, contenido, contenidos, cole, colar, envie, enviar, compartilhe, forneça, mande, conteúdo, conteúdos,
        incolla, incollare, invia, inviare, condividi, fornisci, contenuto, contenuti, вставьте, вставить, скопируйте, отправьте,
        пришлите, предоставьте, загрузите, содержимое, الصق*, لصق, انسخ*, ارسل*, شارك*, زودنا*, محتوى, محتويات, पेस्ट, चिपकाएं, चिपकाएँ,
        भेजें, साझा, कॉपी, सामग्री, পেস্ট, পাঠান, শেয়ার, কপি, বিষয়বস্তু*, লেখাটি, چسپاں, پیسٹ, بھیجیں, شیئر, کاپی, مواد, tempel,
        tempelkan,
        kirim, kirimkan, bagikan, salin, isi, 粘贴, 貼上, 发送, 发给, 发给我, 发我, 复制, 分享, 内容, 貼り付け, 送信, コピー, 共有,
        붙여, 보내, 복사, 내용
    """,
    # A word that makes a request of the secret's name before it and says where to enter the value ("password here").
    "after": """
        be entered, be typed, be provided, be supplied, be pasted, be given, here, below, goes here, please,
        in the box, into the box, in the field, in the comment, in the chat,
        hier, bitte, unten, ici, ci dessous, aquí, abajo, por favor, aqui, abaixo, qui, sotto, tutaj, poniżej, buraya, aşağıya,
        здесь, сюда, ниже, هنا, ادناه, یہاں, نیچے, यहाँ, यहां, नीचे, এখানে, নিচে, di sini, tại đây, ที่นี่, こちら, 여기, 부탁
    """,
    # A word that says that a value is necessary ("password required"). It asks if the form has a field for free text.
    "needed": """
        required, needed, necessary, mandatory, erforderlich, benötigt, notwendig, nötig, requis, requise, obligatoire, nécessaire,
        requerida, requerido, obligatorio, obligatoria, necesario, necesaria, obrigatório, obrigatória, necessário, necessária,
        richiesta, richiesto, obbligatoria, obbligatorio, necessaria, vereist, verplicht, wymagane, wymagany, gerekli,
        обязательно, обязателен, требуется, необходим, مطلوب, مطلوبه, ضروري, ضروری, आवश्यक, जरूरी, ज़रूरी, প্রয়োজন, diperlukan,
        bắt buộc, 必填, 必须, 必需, 必須, 必要, 필수, 필요
    """,
    # A possessive that refers to the reader ("your").
    "own": """
        your, yours, ur, my, our, ihr, ihre, ihrer, ihrem, ihren, ihres, dein, deine, deiner, deinem, deinen, deines, mein, meine,
        meinem, meiner, euer, eure, votre, vos, ton, ta, tes, mon, ma, mes,
        tu, tus, su, sus, mi, mis, vuestra, vuestro, sua, seu, teu, tua, minha, meu, suo, tuo, mio, mia, vostra, vostro, je, jouw,
        uw, mijn, twoje, twój, twoją, swoje, swój, swoją, své, svůj, vaše, váš, moje,
        iyong, inyong, mo, apna, apni, apne, aapka, aapki, तुमचा, तुमची, உங்கள், మీ, ਆਪਣਾ, ਆਪਣੀ, lako, yako,
        dumneavoastră, tău, voastră, svoj, svoju, vašu, sizin, din, ditt, dine, dit, deres, sinun, σας, σου, ваш, ваша, ваше,
        вашего, вашей, вашу, вашим, ваши, свой, свою, своего, своей, твой, твою, твоего, мой, мою, моего,
        свій, الخاص, الخاصه, الخاص بك, لك, خود, شما, اپنا, اپنی, اپنے, آپ کا, آپ کی, آپ کے, अपना, अपनी, अपने, आपका, आपकी, आपके,
        तुम्हारा, আপনার, তোমার, নিজের, שלך, anda, kamu, của bạn, bạn, ของคุณ, คุณ, 您的, 你的, 您, 你, あなたの, お客様の, ご本人の,
        귀하의, 당신의, 본인의, 고객님의
    """,
    # A negation of a request; some languages put it after the verb.
    "not": """
        never, not, don't, dont, do not, won't, wont, will not, cannot, can't, cant, shouldn't, shouldnt, mustn't, doesn't, didn't,
        nobody, nor, avoid, refuse,
        nie, niemals, nicht, kein, keine, keinen, keinesfalls, nunca, jamás, tampoco, jamais, ne, n', não, mai, non, nooit, niet,
        nigdy, nikdy, soha, niciodată, nikada, asla, aldrig, aldri, inte, ikke, älä, ποτέ, μην,
        не, никогда, нельзя, ніколи, لا, لن, لم, ليس, ابدا, هرگز, نه, نکنید, نہیں, مت, کبھی, नहीं, कभी, मत, न, না, কখনও, কখনো,
        jangan, tidak, đừng, không, ห้าม, ไม่, אל, לא,
        不, 绝不, 切勿, 请勿, 勿, 不会, 不要, 别, 絕不, ません, ないで, しない, いません, 않, 마세요, 마십시오, 절대
    """,
    # A verb that cancels the negation ("do not forget to enter").
    "not meant": """
        forget, hesitate, fail, mind, worry, miss, skip, only, why, delay, vergessen, zögern, nur, olvides, olvide, dudes, dude,
        oubliez, hésitez, esqueça, hesite, dimenticare, esitare, забудьте, стесняйтесь, 忘记, 忘れ
    """,
    # A sign that the request is addressed to somebody other than the reader.
    "others": """
        do you need, do we need, brauchen sie, benötigen sie, brauchst du, how to, where to, when to, whether to, what to, how do i,
        how can i, their, his, her, its, someone's, somebody's, wie man, wo man, deren, dessen, leur, leurs, их, его, её
    """,
    # A word between a verb and the name of a secret that makes the verb ask for something else.
    "elsewhere": """
        whose, who, that, which, where, when, why, how, whether, if, because, about, regarding, concerning, do you, does, did,
        is there, are there, are you, named, called, titled,
        containing, contains, without, against, using, so, until, before, after, while, than,
        deren, dessen, ob, wenn, weil, wo, wann, warum, über, namens, dont, où, quand, si, pourquoi, comment, cuyo, cuya, donde,
        dónde, cuando, cuándo, cómo, sobre, cujo, cuja, onde, quando, cui, dove, perché, riguardo,
        чей, чья, чьё, где, когда, если, ли, о, об, про, который, которого, حول, عن, اذا, کے بارے, के बारे, সম্পর্কে, 是否, 如果, 关于,
        有关, について, かどうか, 관한, 대한, 여부
    """,
    # A genitive preposition ("the owner of the token").
    "of": """
        of, for, behind, von, des, der, für, de, du, d, del, da, do, dos, dei, della, delle, dello, di, pour, para, per, voor,
        van, для, от, til, untuk, cho
    """,
    # A preposition other than those of "of" ("a comment on the token").
    "near": "from, on, at, into, about, regarding, aus, auf, an, sur, sobre, su, из, на, uit, op",
    # A word for the value of a secret, or for an input field: asking for it asks for the secret.
    "any value": """
        number, nummer, numéro, número, numero, номер, numer, numarası, رقم, 号码, 番号, 번호, value, text, content, contents,
        characters, letters, digits, digit, numbers, words, word, string, copy, rest, input, answer,
        all, part, parts, half, first, second, third, fourth, last, four, two, three, six, field, box, space, entry, place, slot,
        area, line, spot, blank,
        drei, vier, trois, quatre, tres, cuatro, três, quatro, tre, quattro, tiga, empat, три, трёх, четыре, четырёх, ثلاثه, اربعه, سته,
        तीन, चार, তিনটি, চার, تین, چار,
        wert, inhalt, zeichen, buchstaben, ziffern, feld, eingabe, valeur, texte, contenu, caractères, chiffres, lettres, mots,
        champ, saisie, valor, texto, contenido, caracteres, dígitos, letras, palabras, campo,
        conteúdo, palavras, valore, testo, contenuto, caratteri, cifre, lettere, значение, текст, символы, символов, цифры, цифр,
        буквы, слова, слов, поле
    """,
    # A word after the name of a secret that makes the name harmless ("password policy").
    "about after": """
        reset e mail, reset email, reset mail, reset link, reset page, reset request, reset requests, reset flow, change request,
        change date, changes, updates, resets,
        a name, a label, a title, file name, file names, file path, file location, file format, directory, folder, context, contexts,
        policy, policies, length, lengths, strength, count, counts, limit, limits, budget, usage, type, types, kind, name, names,
        id, ids, identifier, identifiers, lifetime, ttl, rotation, rotations, manager, managers,
        generator, history, hash, hashes, hashing, protected, protection, authentication, based, format, formats, complexity,
        requirements, requirement, rules, rule, symbol, symbols, address, contract, standard, price, prices, supply, holder,
        holders, sale, economy,
        endpoint, url, uri, path, location, version, versions, scope, scopes, permission, permissions, owner, owners, provider,
        providers, label, labels, colour, color, colors, status, email, emails, e mail, link, links,
        message, messages, santa, ballot, sauce, ingredient, scanning, scanner, detection, leak, leaks, breach, breaches,
        audit, flow, grant, pair, pairs, atendimento, de atendimento, bibliothèque, de bibliothèque, biblioteca, de biblioteca,
        fidélité, de fidélité, cadeau, fila, da fila, de fila, fidelidad, fidelidade, fedeltà, age, days, attempts, retry, retries,
        method, methods, mode, option, options, setting, settings, configuration, config,
        collection, collections, hint, hints, hygiene, fatigue, sharing, free, less, column, columns, variable, expiry days, expiry,
        expiration days, fee, fees, brand, network, issuer, statement, payment, payments, design, game, games, deck, layout, board,
        title, titles, position,
        size, window, cost, costs, pricing, rate, swap, launch, distribution, public, fingerprint, max age, min length, max length,
        minimum length, maximum length, replication, ref, reference, references, arn, alias, ending, country, countries, category,
        and security,
        länge*, richtlinie*, ablauf*, wechsel*, verwaltung*, manager*, limit*, anzahl*, schutz*, geschützt*, regel*, zurücksetz*,
        typ*, name*, belegung*, beleid*, lengte*, zurücksetzen, ändern, geändert,
        vergessen, vergeten, oublié, oubliés, olvidada, olvidé, esquecida, dimenticata, chiave, primaria, primario, foránea,
        publique, público, pública, pubblica, pubblico, öffentlich*, zapomniane, glömt, unutt*, ilkesi, uzunluğu, uzunluk*,
        politikası, longueur,
        नीति, की नीति, की न्यूनतम, की लंबाई, নীতি, پالیسی, کی پالیسی, کی لمبائی, 学, 策略, 政策, 规则, 长度, 最小, 最大, 有效期, 数量,
        数, 管理器, 重置, 强度, 货币, 保护, ポリシー, の最小, の最大, の有効期限, 文字数, 管理, を忘れ, リセット, 保護, マネージャ,
        の長さ, 有効期限, 화폐, 화, 화를, 자산, 정책, 최소, 최대, 길이, 유효, 수, 개수, 관리, 재설정, 를 잊, 을 잊, 강도, 보호
    """,
    # A word before the name of a secret that makes the name harmless ("number of tokens").
    "about before": """
        path to, path of, location of, number of, amount of, count of, max, maximum, min, minimum, total, length of, name of,
        names of, title of, id of,
        identifier of, type of, kind of, owner of, lifetime of, expiry of, expiration of, age of, price of, list of, label of,
        strength of, policy for, rules for, rotation of, hash of, anzahl der, anzahl, länge des, name der, name des, namen der,
        namen des, zahl der, ablauf des, laufzeit des, typ des, nombre de, nombre maximal de, politique des, gestionnaire de,
        número máximo de, máximo de, mínimo de, cantidad de, límite de, quantidade de, limite de, lunghezza della, criteri delle,
        numero massimo di, количество, число, максимум, минимум, длина, политика, политики, срок действия, имя, название, тип,
        сброс, лимит,
        aantal, liczba, długość, liczbę, en az, en fazla, minimum, maksimum, عدد, طول, لطول, سياسه, سياسات, نوع, اسم, نسيت, تعداد,
        最大, 最小, 忘记, 忘記, 重置, 找回, 最大の, 최대, 최소
    """,
    # An action on a secret, or a state of it, that does not reveal it ("reset password", "invalid token").
    "doing": """
        reset*, chang*, forg*, lost, recover*, rotat*, revok*, delet*, remov*, regenerat*, generat*, creat*, renew*, expir*,
        disabl*, enabl*, stor*, sav*, hid*, mask*, copy, copied, updat*, invalid, wrong, incorrect, bad, weak, leaked, unknown,
        missing, stale, hard coded, hardcoded, found, failed,
        added, enforc*, allow*, block*, used, print, printed, test, tested, migrat*, list, listed, audit*, scan*, detect*,
        encrypt*, protect*, dies, died, covers, cover, keep, keeps, leak*,
        olvid*, esquec*, oubli*, dimentic*, vergess*, забы*, zapomn*, glöm*, glem*, zurücksetzen, zurückgesetzt,
        ändern, geändert, vergessen, löschen, widerrufen, erneuern, erzeugen, falsches, falsch, ungültig, ungültiges,
        abgelaufen, schwache, réinitialiser, changer, oublié, supprimer, révoquer, renouveler, générer, invalide, incorrect, expiré,
        restablecer, cambiar, olvidé, olvidada, eliminar, revocar, renovar, generar, inválida, incorrecta, caducada, redefinir,
        alterar, esqueci, excluir, revogar, gerar, incorreta, expirada, reimpostare, cambiare, dimenticata, eliminare, revocare,
        generare, errata, scaduta,
        сбросить, сменить, забыл, забыли, забыла, удалить, отозвать, создать, неверный, истёк, просроченный, zapomniałem, pamiętam,
        unuttum, vergeten, نسي*, تغيير, اعاده تعيين, 忘记, 忘記, 重置, 修改, 更改, 找回, 撤销, 删除, 过期, 错误, 忘れ, 変更,
        リセット, 削除, 無効, 잊, 변경, 재설정, 삭제, 만료, भूल, बदलें, रीसेट, ভুলে, পরিবর্তন, بھول, تبدیل, فراموش
    """,
    # A word for an event after the name of a secret in the name of a field ("password changed at").
    "event": "changed, changes, expires, expired, expire, created, updated, rotated, revoked, leaked, reset, resets, change, update",
    # A word for a number of digits.
    "digits": """
        digit, digits, stellig*, sechsstellig*, vierstellig*, achtstellig*, chiffres, dígitos, cifras, cifre, cijfer*, siffr*,
        цифр*, шестизначн*, четырёхзначн*, четырехзначн*, пятизначн*, cyfr*, haneli, számjegy*, ارقام, رقما, اعداد, अंक*, अंकों,
        সংখ্যা*, ہندسوں, 桁, 桁の, 자리, 位, 位数字
    """,
    # An interrogative.
    "which": """
        which, what, welche*, wie, quel, quelle, quels, qué, cuál, qual, quale, какой, какая, каков, який, 什么, 何, どの, 어떤,
        무엇, क्या, कौन, কী, کیا, کون, ما, hangi, welk, welke, wat, jaki, jakie, jaké, milyen, vilket, vilken, hvad, hvilken, apa, gì
    """,
    # A word that says that a message arrived, or how it arrived.
    "arrived": """
        sent, got, get, text you, received, receive, texted, from, by, arrived, in, generated, shown, show, displays, shows,
        e mailed, emailed,
        aus, geschickt, gesendet, erhalten, bekommen, per, von, gekommen, reçu, reçue, envoyé, affiché, par, dans, de,
        recibido, recibiste, recibió, llegó, enviado, enviamos, por, recebido, recebeu, chegou, ricevuto, inviato, via, из, пришёл,
        пришел, отправлен, отправили, полученный, в, 收到, 发送到, 发到, 届いた, 受け取, 送った, 表示, 받은, 온, 보낸,
        आया, आए, भेजा, প্রাপ্ত, পাঠানো, আসা, موصول, آیا, بھیجا, المرسل, وصل, ارسلنا, gelen, gönder*, ontvangen, uit, z, ze, fra, från,
        dari, dikirim, đã gửi
    """,
    # An expression that says that the reader was just sent a code, without naming the channel.
    "sent to you": """
        sent you, sent to you, just sent, we sent, emailed you, e mailed you, you received, just received, just got, texted you,
        just texted, ihnen geschickt, ihnen gesendet, ihnen gesandt, dir geschickt,
        dir gesendet, geschickt haben, gesendet haben, erhalten haben, erhalten hast, bekommen haben, bekommen hast, avons envoyé,
        avons envoyés, avons envoyées, venons envoyer, avez reçu, te enviamos,
        le enviamos, hemos enviado, te mandamos, acabamos enviar, acabas recibir, ha recibido, has recibido, lhe enviamos,
        enviamos para você, enviamos a você,
        você recebeu, que enviamos, abbiamo inviato, hai ricevuto, отправили вам, вам отправили, прислали вам, вам прислали,
        мы отправили,
        мы прислали, вам пришли, вы получили, ارسلناها, ارسلناه, ارسلنا اليك, ارسلنا لك, وصلتك, وصلك, भेजे गए, भेजा गया, भेजे हैं,
        आपको भेज*, আপনাকে পাঠান*,
        পাঠানো, بھیجے گئے, بھیجا گیا, آپ کو بھیج*, kirim kepada anda, kirimkan kepada anda, kami kirim, kami kirimkan, 发给您,
        发给你, 发送给您, 发送给你, 刚收到, 刚刚收到, 您收到, お送りした, 送信した, 送られた, 보내 드린, 보내드린
    """,
    # A pronoun that refers to a secret in an earlier clause ("type it below").
    "pointing": "it, them, that, this, those, es, ihn, sie, das, le, la, les, lo, los, las, a, o, ele, ela, его, её, их, 它",
    # A polite or neutral word that does not change the meaning of a short text.
    "courtesy": """
        please, kindly, pls, plz, sir, madam, hi, hello, dear, now, again, once, more, current, old, new, existing, full, complete,
        valid, bitte, jetzt, nochmals, aktuelles, aktuelle, neues, altes, s'il vous plaît, veuillez, svp, actuel, nouveau, ancien,
        por favor, actual, nueva, nuevo, atual, nova, novo,
        per favore, attuale, nuova, пожалуйста, текущий, новый, старый, कृपया, দয়া করে, براہ کرم, الرجاء, يرجى, 请, 請, lütfen,
        proszę, prosím, kérem, account, user, username, user name, and, or, und, oder, et, ou, y, и, choose, confirm, repeat,
        verify, quick check, personal, personnel, personale, pessoal, pribadi, lama, baru, e
    """,
    # An ambiguous name of a secret ("secret"). It counts only if it is the whole name of a field, or follows a possessive.
    "loose": """
        secret, secrets, pass, pw, geheimnis, geheim, clave, claves, secreto, segreto, segredo, parola, parole, parolei, parolele,
        sekret, hemlighet, секрет, シークレット
    """,
    # A word after an ambiguous name that says which ordinary thing the name means ("clave del producto").
    "after loose": """
        producto, productos, artículo, pedido, cliente, proveedor, asignatura, materia, curso, catastral, sol, fa, of success,
        del producto, de producto, del artículo, de artículo, del pedido, de pedido, de cliente, del cliente, del proveedor,
        de la asignatura, de la materia, del curso, de sol, de fa, del éxito
    """,
    # A name of a field that may take a one-time code, depending on the rest of the form.
    "code name": """
        code, codes, código, codice, kod, kodu, kodunu, код, кода, 코드, コード, 代码, 验证码, digits, six digits, digit code,
        digit number, ziffern, chiffres, cifras, dígitos, cifre, цифры, цифр, رمز, کوڈ, ہندسے, कोड, কোড, কোডটি, 位数字, 桁の 数字, kode
    """,
    # A channel for one-time codes.
    "code channel": """
        sms, एसएमएस, এসএমএস*, ایس ایم ایس, text message, texted, text you, authenticator, authenticator app, auth app, phone,
        mobile, smartphone, two factor, 2fa, mfa,
        one time, whatsapp, telegram, e mail, email, inbox, téléphone, portable, teléfono, móvil, handy, celular, telefono,
        cellulare, telefon*,
        telefoon, телефон*, смс, почт*, correo, courriel, 手机, 手機, 短信, 邮件, 携帯, 携帯電話, スマホ, メール, 휴대폰, 휴대전화,
        핸드폰, 문자, 이메일, फ़ोन, फोन, मोबाइल, ফোন*, মোবাইল*, فون, موبائل, هاتف*, جوال*, موبايل, ponsel, điện thoại, โทรศัพท์
    """,
    # A part of a postal address. In a form with two such fields, an Indian PIN code is a postal code.
    "address": "address, city, town, district, state, street, locality, village, landmark, पता, शहर, राज्य, ঠিকানা, শহর, پتہ, شہر",
    # A word for a card. With it, a field whose pattern is sixteen digits asks for a card number.
    "card": """
        card, cards, karte, kreditkarte, carte, tarjeta, cartão, carta, karta, karty, kart, kort, карта, карты, карт, بطاقه, کارڈ,
        कार्ड, কার্ড, 卡, カード, 카드
    """,
    # A thing to which a secret belongs. A text of the secret's name and this word still consists of the name only ("PIN of the card").
    "holder": """
        bank, account, wallet, card, back of card, rückseite, kartenrückseite, verso, reverso, dorso, retro, au dos, derrière,
        al dorso, atrás, detrás, trás, parte de trás, обороте, banco, conta, cuenta, cartera, tarjeta, carteira, cartão, compte,
        carte, portefeuille, konto,
        karte, akun, kartu, dompet, карты, карте, кошелька, банка, بطاقه, بطاقتك, لبطاقتك, حساب, حسابك, محفظه, बैंक, खाते, कार्ड, वॉलेट,
        ব্যাংকের, অ্যাকাউন্টের, কার্ডের, ওয়ালেটের, بینک, اکاؤنٹ, کارڈ, والٹ, 账户, 帐户, 卡片, アカウント, カード, 銀行
    """,
    # A word for a company. The tax number of a company is public.
    "company": """
        company, companies, business, businesses, organisation, organization, supplier, vendor, empresa, proveedor, fornecedor,
        entreprise, société, fournisseur, firma, firmy, unternehmen, lieferant, компани*, организаци*, поставщик*, شركه, कंपनी,
        কোম্পানি*, کمپنی, perusahaan, 公司, 企业, 会社, 회사
    """,
    # A word before "pin" that makes it a verb ("emoji to pin").
    "infinitive": "to, shall i, shall we, should i, should we, should the bot",
    # A name of an HTTP header that carries a secret. It counts only if it is the whole name of a field.
    "header name": "authorization, authorisation, proxy authorization, bearer",
    # A word for a quantity. With it, a numeric field asks for an amount, such as of tokens.
    "quantity": """
        length, min, max, minimum, maximum, count, number of, days, hours, minutes, seconds, expiry, age, ttl, lifetime, attempts,
        history, tokens, limit, budget, longueur, longitud, comprimento, tamanho, lunghezza, länge*, mindestlänge*, ablauf, lengte,
        uzunluğu, длина, 长度, 最小, 最大, 길이, 수, 数, लंबाई, طول
    """,
    # A word that may occur between the words of a secret's name ("of").
    "small": """
        mm, yy, yyyy, shown, a, an, the, of, for, on, in, at, to, from, by, via, with, is, are, was, were, be, been, has, have, had,
        just, ang, ng, mga, wir, ihnen, dir, nous, vous, lhe,
        we, you, that, which, it, this, s, der, die, das, dem, den, des, ein, eine, einen, einem, einer, von, zu, zum, zur, im, und,
        für, auf, aus, le, la, les, l, un, une, de, du, d, et, en, à, au, aux, que, por, par, pour,
        el, los, las, lo, del, al, con, nos, te, se, os, as, o, da, dos, das, no, na, ao, um, uma, il, gli, i, do, di, dei, della,
        delle, dello, uno, una, che, ci, het, een, van, op, voor, w, z, na, v, ve, bir, в, из, на, по, от, к, с, у, мы, вам, вас,
        то, में, की, का, के, को, पर, से, এর, کا, کی, کے, میں, پر, سے,
        em, الذي, التي, من, في, الى, على, ذات, ב, ל, של, את, yang, untuk, ke, di, เพื่อ, 的, を, の, に, へ, は, が, も, で, 을, 를,
        은, 는, 이, 가, 의, 에
    """,
}  # fmt: skip

HARMLESS_BEFORE: dict[str, str] = {
    "token": """
        page, next, prev, previous, continuation, sync, cursor, cancellation, cancel, stop, special, design, input, output, prompt,
        completion, governance, utility, nft, erc20, erc 20, fungible, native, eos, bos, pad, mask, total, max, maximum, min, per,
        million, which, base, quote
    """,
    "pin": """
        gpio, arduino, led, data, digital, analog, analogue, clock, map, bowling, rolling, push, drop, drawing, lapel, safety,
        connector, output, cs, sda, scl, tie, hair, board, location
    """,
    "card": """
        trello, kanban, library, loyalty, membership, member, business, sim, report, playing, score, gift, memory, graphics,
        network, video, sound, post, greeting, yellow, red, time, flash, index, rate, contact, project, budget, sd, punch,
        invitation, place, menu, story, item, bibliotheks, member's
    """,
    "code": """
        order, article, customer, store, employee, member, tracking, booking, invoice, project, cost, center, centre, department,
        reference, invite, invitation, referral, gift, gutschein, कूपन, प्रोमो, কুপন, প্রোমো, کوپن, پرومو, 优惠, 优惠券, 折扣, 邀请,
        クーポン, 招待, ticket, case, phone, telephone, mobile, serial, model, course, room, hs, product, item, country, area,
        region, dialling, dialing, discount, promo, coupon, voucher, postal, zip, error, status, source, qr, bar
    """,
    "key": "public, primary, foreign, sort, partition, issue, project, object",
    "private key": "public",
    "password": "palabra, palabras",
}  # fmt: skip
"""Kind of secret → words before a name of this kind that make the name harmless ("page token", "library card number")."""

_AFTER_PIN = """
    of area, of delivery area, of village, of town, of locality, of post office, of delivery address, for delivery area, for village,
    of chip, of connector, of board, of microcontroller, of sensor, of header
"""

HARMLESS_AFTER: dict[str, str] = {
    "pin": _AFTER_PIN,
    "pincode": _AFTER_PIN,
    "credentials": "of speaker, of speakers, of author, of authors, of lecturer, of presenter, of instructor",
}
"""Name of a secret → phrases, separated by commas, that make the name harmless if they follow it.

For example, "credentials of the speaker" are not a password.
"""
