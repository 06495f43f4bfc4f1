"""The beginning of the Universal Declaration of Human Rights, article 1, in many languages.

With each a word of it in another form, as a searcher would write it.
"""

from typing import NamedTuple


class Sentence(NamedTuple):
    text: str
    word: str  # of the text
    asked: str  # the same in another form


SENTENCES = {
    "en": Sentence("All human beings are born free and equal in dignity and rights.",
                   "rights", "right"),
    "ar": Sentence("يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.", "الكرامة", "كرامة"),
    "hy": Sentence("Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու "
                   "իրավունքներով։", "իրավունքներով", "իրավունքներ"),
    "eu": Sentence("Gizon-emakume guztiak aske jaiotzen dira, duintasun eta eskubide berberak "
                   "dituztela.", "duintasun", "duintasuna"),
    "ca": Sentence("Tots els éssers humans neixen lliures i iguals en dignitat i en drets.",
                   "drets", "dret"),
    "cs": Sentence("Všichni lidé se rodí svobodní a sobě rovní co do důstojnosti a práv.",
                   "práv", "práva"),
    "da": Sentence("Alle mennesker er født frie og lige i værdighed og rettigheder.",
                   "værdighed", "værdigheden"),
    "nl": Sentence("Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.",
                   "rechten", "recht"),
    "eo": Sentence("Ĉiuj homoj estas denaske liberaj kaj egalaj laŭ digno kaj rajtoj.",
                   "rajtoj", "rajto"),
    "et": Sentence("Kõik inimesed sünnivad vabadena ja võrdsetena oma väärikuselt ja õigustelt.",
                   "õigustelt", "õigustele"),
    "fi": Sentence("Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.",
                   "oikeuksiltaan", "oikeuksien"),
    "fr": Sentence("Tous les êtres humains naissent libres et égaux en dignité et en droits.",
                   "droits", "droit"),
    "de": Sentence("Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
                   "Menschen", "Mensch"),
    "el": Sentence("Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα "
                   "δικαιώματα.", "δικαιώματα", "δικαιωμάτων"),
    "hi": Sentence("सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
                   "अधिकारों", "अधिकार"),
    "hu": Sentence("Minden emberi lény szabadon születik és egyenlő méltósága és joga van.",
                   "joga", "jogok"),
    "id": Sentence("Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama.",
                   "dilahirkan", "lahir"),
    "ga": Sentence("Saolaítear na daoine uile saor agus comhionann ina ndínit agus ina gcearta.",
                   "gcearta", "cearta"),
    "it": Sentence("Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
                   "diritti", "diritto"),
    "lt": Sentence("Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis.",
                   "teisėmis", "teisės"),
    "ne": Sentence("सबै व्यक्तिहरू जन्मजात स्वतन्त्र हुन् ती सबैको समान अधिकार र महत्व छ।",
                   "व्यक्तिहरू", "व्यक्ति"),
    "nb": Sentence("Alle mennesker er født frie og med samme menneskeverd og menneskerettigheter.",
                   "menneskerettigheter", "menneskerettighetene"),
    "fa": Sentence("تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
                   "آزاد", "آزاد"),
    "pl": Sentence("Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych "
                   "praw.", "praw", "prawa"),
    "pt": Sentence("Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
                   "direitos", "direito"),
    "ro": Sentence("Toate ființele umane se nasc libere și egale în demnitate și în drepturi.",
                   "drepturi", "drepturile"),
    "ru": Sentence("Все люди рождаются свободными и равными в своем достоинстве и правах.",
                   "правах", "права"),
    "sr": Sentence("Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima.",
                   "pravima", "prava"),
    "st": Sentence("Batho bohle ba tswetswe ba lokolohile mme ba lekana ka botho le ditokelo.",
                   "lokolohile", "lokoloha"),
    "es": Sentence("Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
                   "derechos", "derecho"),
    "sv": Sentence("Alla människor är födda fria och lika i värde och rättigheter.",
                   "rättigheter", "rättigheterna"),
    "ta": Sentence("மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும், "
                   "உரிமைகளிலும் சமமானவர்கள்.", "உரிமைகளிலும்", "உரிமைகள்"),
    "tr": Sentence("Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
                   "haklar", "hakların"),
    "yi": Sentence("יעדער מענטש װערט געבױרן פֿרײַ און גלײַך אין כּבֿוד און רעכט.", "מענטש", "מענטשן"),
    "zh": Sentence("人人生而自由，在尊严和权利上一律平等。", "权利", "权利"),
    "ja": Sentence("すべての人間は、生まれながらにして自由であり、かつ、"
                   "尊厳と権利とについて平等である。", "権利", "権利"),
    "ko": Sentence("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
                   "권리에", "권리"),
    "th": Sentence("มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ", "สิทธิ", "สิทธิ"),
    "lo": Sentence("ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ, ສິດທິ, ເສລີພາບ ແລະ ຄວາມສະເໝີພາບເທົ່າທຽມກັນ.",
                   "ເສລີພາບ", "ເສລີພາບ"),
    "km": Sentence("មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព ក្នុងផ្នែកសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ។",
                   "សិទ្ធិ", "សិទ្ធិ"),
    "my": Sentence("လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ တူညီလွတ်လပ်သော "
                   "အခွင့်အရေးများဖြင့် လည်းကောင်း မွေးဖွားလာသူများဖြစ်သည်။", "အခွင့်အရေး", "အခွင့်အရေး"),
}  # fmt: skip
